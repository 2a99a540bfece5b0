"""From events to a dataset of finished conversations: one row each, exactly once, reproducible from the log.

Three durable places and no transaction that spans them, so the order is what makes it hold across a crash anywhere:

1. A batch of events is put into the assembly (repeats passed over), what makes no sense becomes a dead letter, *then*
   the offsets are committed to the log.
2. Finished conversations are assigned to a part there, *then* the part is written, *then* their events are dropped.
   Whoever publishes next writes an assigned part again, and it is the very same.
3. The version goes up, *then* its manifest is written. A manifest that is behind is written again.

Finished means: closed, no event missing, and with an outcome or quiet for the grace period, in which case success and
rewards stay unknown until they are told: a later outcome revises the row. A conversation with a gap waits for the
missing event until the gap's deadline; then its events are dead letters, and ``sparring dead-letter retry`` brings
them back. What is erased, purged or past its retention is taken out by writing its part anew.

Several processes may consume into one folder at once; one at a time publishes. Left out on purpose: folders shared
by several machines (the assembly is a SQLite file), and features for training (``pipelines.round`` makes contexts).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from negotiation.event_log import EventLog, positions
from negotiation.events import OutcomeReported
from pipelines.assembly import Assembly, Waiting, forget
from pipelines.dataset_files import (
    DatasetInUse,
    Manifest,
    Part,
    Progress,
    file_sha256,
    held,
    part_rows,
    read_manifest,
    write_manifest,
    write_part,
)
from pipelines.dataset_rows import ContentHash, MalformedConversation, conversation_row, row_digest, with_outcome

BATCH_EVENTS = 4000
PART_ROWS = 5000
SMALL_PARTS = 32
"""So many parts of less than half the size are written anew as one."""
EXPIRED = "expired"


@dataclass(frozen=True)
class DatasetLimits:
    """How long things wait. ``publish_every``: the pause between two versions while not many conversations come."""

    outcome_grace: timedelta = timedelta(minutes=5)
    gap_deadline: timedelta = timedelta(hours=1)
    retention: timedelta | None = None
    publish_every: timedelta = timedelta(0)
    batch_events: int = BATCH_EVENTS
    part_rows: int = PART_ROWS


@dataclass(frozen=True)
class ConsumeReport:
    """What one call did: events read, conversations written, parts made, dead letters, conversations taken out."""

    events: int
    conversations: int
    parts: int
    set_aside: int
    removed: int


class DatasetWriter:
    """A consumer. Several may share a folder, also in several processes of one machine."""

    def __init__(self, event_log: EventLog, directory: Path, limits: DatasetLimits | None = None) -> None:
        self.directory = directory
        self._log = event_log
        self._limits = limits or DatasetLimits()
        directory.mkdir(parents=True, exist_ok=True)
        self._assembly = Assembly(directory / "_assembly.db")
        self._published_at = float("-inf")
        self._written = self._parts = self._set_aside = self._removed = 0

    @property
    def group(self) -> str:
        """The consumer group that reads the log into this folder."""
        return self._assembly.group

    def consume(
        self, progress: Progress | None = None, *, now: datetime | None = None, flush: bool = True
    ) -> ConsumeReport:
        """Take in everything the log has, and publish what is finished: with ``flush`` at once, else when it is time.

        ``progress``: events done, events in all. Raises DatasetInUse, with ``flush`` only.
        """
        self._written = self._parts = self._set_aside = self._removed = 0
        total, done = self._log.lag(self.group), 0
        while records := self._log.poll(self.group, self._limits.batch_events):
            for record, reason in self._assembly.take(records, now or datetime.now(UTC)):
                self._log.bury(record, reason)
                self._set_aside += 1
            self._log.commit(self.group, positions(records))
            done += len(records)
            if progress:
                progress(done, max(total, done))
            if self.unfinished() >= self._limits.part_rows:
                self._publish(now, wait=False)
        if flush or time.monotonic() - self._published_at >= self._limits.publish_every.total_seconds():
            self._publish(now, wait=flush)
        return ConsumeReport(done, self._written, self._parts, self._set_aside, self._removed)

    def written(self) -> int:
        """Conversations in the dataset so far."""
        return int(self._assembly.value("SELECT coalesce(sum(rows), 0) FROM parts WHERE live"))

    def unfinished(self) -> int:
        """Conversations begun and not yet finished."""
        return int(self._assembly.value("SELECT count(*) FROM conversations WHERE part IS NULL"))

    def close(self) -> None:
        self._assembly.close()

    def _publish(self, now: datetime | None, *, wait: bool) -> None:
        moment = now or datetime.now(UTC)
        try:
            with held(self.directory, wait=wait):
                self._recover()
                self._set_aside_stuck(moment)
                self._expire(moment)
                while self._write_finished(moment):
                    pass
                self._rewrite_changed()
                self._merge_small_parts()
                self._write_version(moment)
                self._sweep()
                self._published_at = time.monotonic()
        except DatasetInUse:
            if wait:
                raise

    def _recover(self) -> None:
        with self._assembly.change() as db:
            # A part that was to replace others is simply made again; they are all still there.
            db.execute("DELETE FROM parts WHERE live = 0 AND rewrites = 1")
        for (name,) in self._assembly.rows("SELECT name FROM parts WHERE live = 0"):
            self._write_new(name)

    def _set_aside_stuck(self, now: datetime) -> None:
        deadline = (now - self._limits.gap_deadline).timestamp()
        while stuck := self._assembly.stuck(deadline, self._limits.part_rows):
            for waiting in stuck:
                there = {record.event.sequence for record in self._assembly.events(waiting.conversation_id)}
                missing = next(number for number in range(waiting.last_sequence + 1) if number not in there)
                self._bury(waiting, f"event {missing} of its conversation did not come in time")

    def _bury(self, waiting: Waiting, reason: str) -> None:
        for record in self._assembly.events(waiting.conversation_id):
            self._log.bury(record, reason)
            self._set_aside += 1
        with self._assembly.change() as db:
            forget(db, [waiting.conversation_id], None)

    def _expire(self, now: datetime) -> None:
        if self._limits.retention is None:
            return
        before = (now - self._limits.retention).timestamp()
        with self._assembly.change() as db:
            old = db.execute(
                "SELECT conversation_id FROM conversations WHERE part IS NULL AND arrived_at < ?", (before,)
            )
            forget(db, [identity for (identity,) in old.fetchall()], EXPIRED)
            db.execute(
                "UPDATE conversations SET removal = ? WHERE part IS NOT NULL AND removal IS NULL AND closed_at < ?",
                (EXPIRED, before),
            )

    def _write_finished(self, now: datetime) -> bool:
        scenario, finished = self._assembly.finished(
            (now - self._limits.outcome_grace).timestamp(), self._limits.part_rows
        )
        if not finished:
            return False
        with self._assembly.change() as db:
            name = self._new_part(db, scenario, rewrites=False)
            db.executemany(
                "UPDATE conversations SET part = ?, written_to = ? WHERE conversation_id = ?",
                [(name, waiting.last_sequence, waiting.conversation_id) for waiting in finished],
            )
        self._write_new(name)
        return True

    def _write_new(self, name: str) -> None:
        """Write a part of conversations that were assigned to it, from their events."""
        version = int(self._assembly.value("SELECT version FROM dataset")) + 1
        digests: list[tuple[bytes, str]] = []
        malformed: list[Waiting] = []

        def rows() -> Iterator[dict[str, Any]]:
            for row in self._assembly.rows(
                "SELECT conversation_id, written_to, partition, first_offset, last_offset FROM conversations "
                "WHERE part = ? ORDER BY conversation_id",
                (name,),
            ):
                waiting = Waiting(*row)
                events = [record.event for record in self._assembly.events(waiting.conversation_id)]
                try:
                    said = conversation_row([event for event in events if event.sequence <= waiting.last_sequence])
                except MalformedConversation as error:
                    self._log_malformed(waiting, str(error))
                    malformed.append(waiting)
                    continue
                digests.append((row_digest(said), waiting.conversation_id))
                yield {
                    **said,
                    "partition": waiting.partition,
                    "first_offset": waiting.first_offset,
                    "last_offset": waiting.last_offset,
                    "version": version,
                }

        figures = self._write_file(name, rows())
        with self._assembly.change() as db:
            forget(db, [waiting.conversation_id for waiting in malformed], None)
            db.execute(
                "DELETE FROM events WHERE EXISTS (SELECT 1 FROM conversations WHERE part = ? AND "
                "conversations.conversation_id = events.conversation_id AND sequence <= written_to)",
                (name,),
            )
            db.executemany("UPDATE conversations SET digest = ? WHERE conversation_id = ?", digests)
            self._settle(db, name, figures, added=[digest for digest, _ in digests], removed=[])
        self._written += len(digests)

    def _log_malformed(self, waiting: Waiting, reason: str) -> None:
        for record in self._assembly.events(waiting.conversation_id):
            self._log.bury(record, reason)
            self._set_aside += 1

    def _rewrite_changed(self) -> None:
        changed = self._assembly.rows(
            "SELECT DISTINCT part FROM conversations WHERE part IS NOT NULL AND (removal IS NOT NULL OR "
            "conversation_id IN (SELECT conversation_id FROM events))"
        )
        for (name,) in changed:
            self._rewrite([name])

    def _merge_small_parts(self) -> None:
        small = self._assembly.rows(
            "SELECT name, rows, scenario FROM parts WHERE live AND rows < ? ORDER BY scenario, name",
            (self._limits.part_rows // 2,),
        )
        for scenario in {row[2] for row in small}:
            names = [name for name, _, of in small if of == scenario]
            if len(names) >= SMALL_PARTS:
                self._rewrite(names)

    def _rewrite(self, names: list[str]) -> None:
        """One part in place of ``names``, without what is to be removed and with the outcomes told since."""
        marks = ",".join("?" * len(names))
        held_by = f"SELECT conversation_id, digest, removal, written_to FROM conversations WHERE part IN ({marks})"
        kept: list[str] = []
        new: dict[str, tuple[bytes, int]] = {}
        known = {row[0]: row[1:] for row in self._assembly.rows(held_by, names)}
        outcomes = {identity: self._later_outcome(identity, to) for identity, (_, _, to) in known.items()}
        with self._assembly.change() as db:
            (scenario,) = db.execute("SELECT scenario FROM parts WHERE name = ?", (names[0],)).fetchone()
            name = self._new_part(db, scenario, rewrites=True)

        def rows() -> Iterator[Mapping[str, Any]]:
            for part in self._live_parts(names):
                for row in part_rows(self.directory, part):
                    identity = row["conversation_id"]
                    if known[identity][1] is not None:
                        continue
                    kept.append(identity)
                    later = outcomes[identity]
                    if later is not None:
                        row = with_outcome(row, later[0])
                        new[identity] = (row_digest(row), later[1])
                    yield row

        figures = self._write_file(name, rows())
        removed = {identity: why for identity, (_, why, _) in known.items() if why is not None}
        with self._assembly.change() as db:
            for identity, why in removed.items():
                forget(db, [identity], why)
            db.execute(f"UPDATE conversations SET part = ? WHERE part IN ({marks})", (name, *names))
            for identity, (digest, written_to) in new.items():
                db.execute(
                    "UPDATE conversations SET digest = ?, written_to = ? WHERE conversation_id = ?",
                    (digest, written_to, identity),
                )
                db.execute("DELETE FROM events WHERE conversation_id = ? AND sequence <= ?", (identity, written_to))
            db.execute(f"DELETE FROM parts WHERE name IN ({marks})", names)
            db.execute("UPDATE dataset SET revised = revised + ?", (len(new),))
            gone = [known[identity][0] for identity in (*removed, *new)]
            self._settle(db, name, figures, added=[digest for digest, _ in new.values()], removed=gone)
        self._removed += len(removed)

    def _later_outcome(self, identity: str, written_to: int) -> tuple[OutcomeReported, int] | None:
        later = [record.event for record in self._assembly.events(identity, after=written_to)]
        outcomes = [(event.payload, event.sequence) for event in later if isinstance(event.payload, OutcomeReported)]
        return outcomes[-1] if outcomes else None

    def _write_file(self, name: str, rows: Iterator[Mapping[str, Any]]) -> tuple[int, int, int, str]:
        path = self.directory / "parts" / name
        count, consented = write_part(path, rows)
        self._parts += count > 0
        return (count, consented, path.stat().st_size, file_sha256(path)) if count else (0, 0, 0, "")

    def _new_part(self, db: Any, scenario: str, *, rewrites: bool) -> str:
        db.execute("UPDATE dataset SET parts_made = parts_made + 1")
        (number,) = db.execute("SELECT parts_made FROM dataset").fetchone()
        name = f"scenario={scenario}/part-{number:08d}.parquet"
        db.execute("INSERT INTO parts (name, scenario, rewrites) VALUES (?, ?, ?)", (name, scenario, rewrites))
        return name

    def _settle(
        self, db: Any, name: str, figures: tuple[int, int, int, str], *, added: list[bytes], removed: list[bytes]
    ) -> None:
        if figures[0]:
            db.execute(
                "UPDATE parts SET live = 1, rows = ?, consented = ?, bytes = ?, sha256 = ? WHERE name = ?",
                (*figures, name),
            )
        else:
            db.execute("DELETE FROM parts WHERE name = ?", (name,))
        content = ContentHash(db.execute("SELECT content FROM dataset").fetchone()[0])
        for digest in removed:
            content.remove(digest)
        for digest in added:
            content.add(digest)
        db.execute("UPDATE dataset SET content = ?, changed = 1", (content.state,))

    def _live_parts(self, names: list[str] | None = None) -> list[Part]:
        found = self._assembly.rows(
            "SELECT name, scenario, rows, consented, bytes, sha256 FROM parts WHERE live ORDER BY name"
        )
        parts = [Part(**dict(zip(Part.model_fields, row, strict=True))) for row in found]
        return parts if names is None else [part for part in parts if part.name in names]

    def _write_version(self, now: datetime) -> None:
        with self._assembly.change() as db:
            db.execute("UPDATE dataset SET version = version + 1, changed = 0 WHERE changed")
        version, content, revised = self._assembly.rows("SELECT version, content, revised FROM dataset")[0]
        if read_manifest(self.directory).version == version:
            return
        parts = self._live_parts()
        by_scenario: dict[str, int] = {}
        for part in parts:
            by_scenario[part.scenario] = by_scenario.get(part.scenario, 0) + part.rows
        manifest = Manifest(
            version=version,
            created_at=now,
            content_hash=ContentHash(content).hexdigest(),
            conversations=sum(part.rows for part in parts),
            consented=sum(part.consented for part in parts),
            by_scenario=by_scenario,
            offsets=dict(self._assembly.rows("SELECT partition, offset FROM consumed ORDER BY partition")),
            gone=dict(self._assembly.rows("SELECT why, count(*) FROM gone GROUP BY why ORDER BY why")),
            revised=revised,
            parts=tuple(parts),
        )
        write_manifest(self.directory, manifest)

    def _sweep(self) -> None:
        """Files that belong to no part: replaced ones, and what a crash left behind."""
        known = {part.name for part in self._live_parts()}
        parts = self.directory / "parts"
        for path in parts.glob("scenario=*/*"):
            if str(path.relative_to(parts)) not in known:
                path.unlink(missing_ok=True)
