"""From events to a dataset of finished conversations: Parquet parts, one row per conversation, each exactly once.

How exactly-once holds across a crash at any point, with three durable places and no transaction that spans them:

1. A batch of events is put into the assembly database (repeats ignored), *then* its offset is committed to the log.
2. Finished conversations are assigned to a part there, *then* the part is written (temporary file, fsync, rename),
   *then* their events are dropped and they are marked written. A start finds assigned but unwritten parts and
   writes the very same file again.

Finished means: opened, closed and with an outcome, no event missing in between; or closed without an outcome for
longer than the grace period, in which case success and rewards stay unknown. What comes later is counted as late.
Memory is bounded by one batch of events and one part.

A conversation that was erased before it was written never is, and its events are dropped. One erased later stays in
the part that holds it, and its tombstone counts as late.

Left out on purpose: compaction of small parts, erasing rows of parts already written, and features for training
(``pipelines.round`` makes contexts).
"""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from negotiation.event_log import EventLog, Record, positions
from negotiation.events import Closed, ConversationEvent, Erased, Message, Opened, OutcomeReported
from negotiation.roles import Role
from negotiation.scenario import CloseReason
from pipelines.event_log import Progress, open_database, transaction

GROUP = "dataset"
BATCH_EVENTS = 4000
PART_ROWS = 5000

SCHEMA = pa.schema(
    [
        ("conversation_id", pa.string()),
        ("tenant", pa.string()),
        ("scenario", pa.string()),
        ("source", pa.string()),
        ("adapter", pa.string()),
        ("labels", pa.string()),
        ("consent", pa.bool_()),
        ("context", pa.string()),
        ("turns", pa.list_(pa.struct([("role", pa.string()), ("text", pa.string()), ("shown", pa.string())]))),
        ("n_turns", pa.int32()),
        ("closed_reason", pa.string()),
        ("agreement", pa.string()),
        ("agreed", pa.bool_()),
        ("success", pa.bool_()),
        ("reward_agent", pa.float64()),
        ("reward_counterpart", pa.float64()),
        ("points_agent", pa.float64()),
        ("points_counterpart", pa.float64()),
        ("pareto_optimal", pa.bool_()),
        ("note", pa.string()),
        ("opened_at", pa.timestamp("us", tz="UTC")),
        ("closed_at", pa.timestamp("us", tz="UTC")),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
    ]
)
"""One row per conversation. ``context`` and ``labels`` are JSON; the context holds the counterpart's view where the
opening or the outcome told it. ``consent``: training may use it. Null means unknown; points are in the scenario's
unit, 0 without an agreement."""

_ASSEMBLY = """
CREATE TABLE IF NOT EXISTS pending_events (
    conversation_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (conversation_id, sequence)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS conversations (
    conversation_id TEXT PRIMARY KEY,
    events INTEGER NOT NULL DEFAULT 0,
    last_sequence INTEGER NOT NULL DEFAULT -1,
    opened INTEGER NOT NULL DEFAULT 0,
    closed_at TEXT,
    outcome INTEGER NOT NULL DEFAULT 0,
    first_offset INTEGER,
    last_offset INTEGER,
    late INTEGER NOT NULL DEFAULT 0,
    part TEXT,
    written INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS erased (conversation_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_conversations ON conversations (last_offset)
    WHERE part IS NULL AND closed_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS unwritten ON conversations (part) WHERE part IS NOT NULL AND written = 0;
"""
_WHOLE = "part IS NULL AND closed_at IS NOT NULL AND opened = 1 AND events = last_sequence + 1"


class DatasetInUse(RuntimeError):
    """Another process is writing this dataset."""


@dataclass(frozen=True)
class ConsumeReport:
    """What one call did: events read, conversations written to the dataset, parts made."""

    events: int
    conversations: int
    parts: int


class DatasetWriter:
    """The consumer. One at a time per dataset directory: a second one raises DatasetInUse."""

    def __init__(
        self,
        event_log: EventLog,
        directory: Path,
        *,
        group: str = GROUP,
        outcome_grace: timedelta = timedelta(minutes=5),
        batch_events: int = BATCH_EVENTS,
        part_rows: int = PART_ROWS,
    ) -> None:
        self.directory = directory
        self._log = event_log
        self._group = group
        self._grace = outcome_grace
        self._batch = batch_events
        self._part_rows = part_rows
        directory.mkdir(parents=True, exist_ok=True)
        self._lease = FileLock(directory / "_writer.lock", blocking=False)
        try:
            self._lease.acquire()
        except Timeout as error:
            raise DatasetInUse(
                f"{directory} is being written by another process: let the worker finish, or stop it first"
            ) from error
        self._assembly = open_database(directory / "_assembly.db", _ASSEMBLY)
        for stale in directory.glob(".*.tmp"):
            stale.unlink()
        self._write_assigned()

    def consume(self, progress: Progress | None = None, *, now: datetime | None = None) -> ConsumeReport:
        """Take in everything the log has and write what is finished. ``progress``: events done, events in all."""
        total, done, conversations, parts = self._log.lag(self._group), 0, 0, 0
        while records := self._log.poll(self._group, self._batch):
            self._take(records)
            self._log.commit(self._group, positions(records))
            done += len(records)
            if progress:
                progress(done, max(total, done))
            if self._finished_count(now) >= self._part_rows:
                conversations, parts = conversations + self._emit(now), parts + 1
        while written := self._emit(now):
            conversations, parts = conversations + written, parts + 1
        return ConsumeReport(done, conversations, parts)

    def written(self) -> int:
        """Conversations in the dataset so far."""
        return self._count("SELECT count(*) FROM conversations WHERE written = 1")

    def unfinished(self) -> int:
        """Conversations begun and not yet finished."""
        return self._count("SELECT count(*) FROM conversations WHERE part IS NULL")

    def late_events(self) -> int:
        """Events that came after their conversation had been written, and are not in the dataset."""
        return self._count("SELECT coalesce(sum(late), 0) FROM conversations")

    def close(self) -> None:
        self._assembly.close()
        self._lease.release()

    def _take(self, records: list[Record]) -> None:
        with transaction(self._assembly) as db:
            for record in records:
                event, payload = record.event, record.event.payload
                if _is_erased(db, event.conversation_id):
                    continue
                db.execute(
                    "INSERT OR IGNORE INTO conversations (conversation_id) VALUES (?)", (event.conversation_id,)
                )
                (part,) = db.execute(
                    "SELECT part FROM conversations WHERE conversation_id = ?", (event.conversation_id,)
                ).fetchone()
                if part is not None:
                    # A redelivered event of a written conversation is no news; only a new sequence is late.
                    db.execute(
                        "UPDATE conversations SET late = late + 1, last_sequence = ? "
                        "WHERE conversation_id = ? AND last_sequence < ?",
                        (event.sequence, event.conversation_id, event.sequence),
                    )
                    continue
                if isinstance(payload, Erased):
                    for table in ("pending_events", "conversations"):
                        db.execute(f"DELETE FROM {table} WHERE conversation_id = ?", (event.conversation_id,))
                    db.execute("INSERT INTO erased VALUES (?)", (event.conversation_id,))
                    continue
                inserted = db.execute(
                    "INSERT OR IGNORE INTO pending_events VALUES (?, ?, ?, ?)",
                    (event.conversation_id, event.sequence, record.offset, event.model_dump_json()),
                )
                if inserted.rowcount == 0:
                    continue
                db.execute(
                    "UPDATE conversations SET events = events + 1, last_sequence = max(last_sequence, :sequence), "
                    "opened = opened OR :opened, closed_at = coalesce(:closed_at, closed_at), "
                    "outcome = outcome OR :outcome, first_offset = coalesce(first_offset, :offset), "
                    "last_offset = :offset WHERE conversation_id = :id",
                    {
                        "id": event.conversation_id,
                        "sequence": event.sequence,
                        "opened": isinstance(payload, Opened),
                        "closed_at": _instant(event.occurred_at) if isinstance(payload, Closed) else None,
                        "outcome": isinstance(payload, OutcomeReported),
                        "offset": record.offset,
                    },
                )

    def _finished_count(self, now: datetime | None) -> int:
        return self._count(f"SELECT count(*) FROM conversations WHERE {self._finished(now)}")

    def _finished(self, now: datetime | None) -> str:
        deadline = (now or datetime.now(UTC)) - self._grace
        return f"{_WHOLE} AND (outcome = 1 OR closed_at <= '{_instant(deadline)}')"

    def _emit(self, now: datetime | None) -> int:
        """Assign up to ``part_rows`` finished conversations to a part, and write it."""
        with transaction(self._assembly) as db:
            rows = db.execute(
                f"SELECT conversation_id, first_offset, last_offset FROM conversations WHERE {self._finished(now)} "
                "ORDER BY last_offset LIMIT ?",
                (self._part_rows,),
            ).fetchall()
            if not rows:
                return 0
            span = f"part-{min(row[1] for row in rows):012d}-{max(row[2] for row in rows):012d}"
            # Offsets are of a partition: conversations of two partitions may have the very same ones.
            part, again = f"{span}.parquet", 0
            while db.execute("SELECT 1 FROM conversations WHERE part = ?", (part,)).fetchone():
                again += 1
                part = f"{span}-{again}.parquet"
            db.executemany(
                "UPDATE conversations SET part = ? WHERE conversation_id = ?", [(part, row[0]) for row in rows]
            )
        self._write_assigned()
        return len(rows)

    def _write_assigned(self) -> None:
        parts = self._assembly.execute(
            "SELECT DISTINCT part FROM conversations WHERE part IS NOT NULL AND written = 0 ORDER BY part"
        ).fetchall()
        for (part,) in parts:
            self._write_part(str(part))

    def _write_part(self, part: str) -> None:
        rows = [
            self._row(identity, first, last)
            for identity, first, last in self._assembly.execute(
                "SELECT conversation_id, first_offset, last_offset FROM conversations "
                "WHERE part = ? AND written = 0 ORDER BY last_offset",
                (part,),
            ).fetchall()
        ]
        _write_durably(pa.Table.from_pylist(rows, schema=SCHEMA), self.directory / part)
        with transaction(self._assembly) as db:
            db.execute(
                "DELETE FROM pending_events WHERE conversation_id IN "
                "(SELECT conversation_id FROM conversations WHERE part = ? AND written = 0)",
                (part,),
            )
            db.execute("UPDATE conversations SET written = 1 WHERE part = ?", (part,))

    def _row(self, identity: str, first: int, last: int) -> dict[str, Any]:
        bodies = self._assembly.execute(
            "SELECT body FROM pending_events WHERE conversation_id = ? ORDER BY sequence", (identity,)
        ).fetchall()
        events = [ConversationEvent.model_validate_json(body) for (body,) in bodies]
        return {**conversation_row(events), "first_offset": first, "last_offset": last}

    def _count(self, query: str) -> int:
        return int(self._assembly.execute(query).fetchone()[0])


def conversation_row(events: list[ConversationEvent]) -> dict[str, Any]:
    """The dataset row (offsets aside) of one conversation's events in order. The last outcome reported counts."""
    opened = next(event for event in events if isinstance(event.payload, Opened))
    closed = next(event for event in events if isinstance(event.payload, Closed))
    begin, end = opened.payload, closed.payload
    assert isinstance(begin, Opened)
    assert isinstance(end, Closed)
    outcomes = [event.payload for event in events if isinstance(event.payload, OutcomeReported)]
    outcome = outcomes[-1] if outcomes else OutcomeReported(agreed=end.reason is CloseReason.AGREED)
    messages = [event.payload for event in events if isinstance(event.payload, Message)]
    context = begin.context
    if outcome.counterpart_view is not None:
        context = context.model_copy(
            update={"views": {**context.views, Role.COUNTERPART: dict(outcome.counterpart_view)}}
        )
    return {
        "conversation_id": opened.conversation_id,
        "tenant": opened.tenant,
        "scenario": context.scenario,
        "source": begin.source,
        "adapter": begin.adapter,
        "labels": json.dumps(begin.labels, sort_keys=True),
        "consent": opened.consent,
        "context": context.model_dump_json(),
        "turns": [{"role": str(m.role), "text": m.text, "shown": m.shown} for m in messages],
        "n_turns": len(messages),
        "closed_reason": str(end.reason),
        "agreement": None if end.agreement is None else str(end.agreement),
        "agreed": outcome.agreed,
        "success": outcome.success,
        "reward_agent": outcome.rewards.get(Role.AGENT),
        "reward_counterpart": outcome.rewards.get(Role.COUNTERPART),
        "points_agent": outcome.points.get(Role.AGENT),
        "points_counterpart": outcome.points.get(Role.COUNTERPART),
        "pareto_optimal": outcome.pareto_optimal,
        "note": outcome.note,
        "opened_at": opened.occurred_at,
        "closed_at": closed.occurred_at,
    }


def _is_erased(db: sqlite3.Connection, conversation_id: str) -> bool:
    query = "SELECT 1 FROM erased WHERE conversation_id = ?"
    return db.execute(query, (conversation_id,)).fetchone() is not None


def _instant(moment: datetime) -> str:
    """UTC in a form whose text order is its time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _write_durably(table: pa.Table, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as sink:
        pq.write_table(table, sink, compression="zstd")
        sink.flush()
        os.fsync(sink.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
