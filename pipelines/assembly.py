"""Where events wait until their conversation is whole: a SQLite database beside the dataset.

It also knows what became of each conversation (which part holds it, whether it was erased), how far the log was read,
and the dataset's content hash. Taking in is idempotent: an event that came before is passed over by its conversation
and sequence number, which its id is made of. So several processes may take in at once, and a batch may come again.

Left out on purpose: files (``pipelines.dataset``), and any judgement by the event's own clock. How long something has
waited is told by when it arrived here.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from negotiation.event_log import Record, positions
from negotiation.events import (
    Closed,
    ConversationEvent,
    Erased,
    Opened,
    OutcomeReported,
    read_event,
)
from pipelines.dataset_rows import ContentHash, MalformedConversation, check_opening
from pipelines.event_log import fingerprint, open_database, transaction

FORMAT = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS dataset (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    consumer_group TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    changed INTEGER NOT NULL DEFAULT 0,
    parts_made INTEGER NOT NULL DEFAULT 0,
    revised INTEGER NOT NULL DEFAULT 0,
    content BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS consumed (partition INTEGER PRIMARY KEY, offset INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    conversation_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (conversation_id, sequence)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS conversations (
    conversation_id TEXT PRIMARY KEY,
    events INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL,
    scenario TEXT,
    closed_at REAL,
    outcome INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    arrived_at REAL NOT NULL,
    part TEXT,
    written_to INTEGER,
    digest BLOB,
    removal TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gone (conversation_id TEXT PRIMARY KEY, why TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    name TEXT PRIMARY KEY,
    scenario TEXT NOT NULL,
    live INTEGER NOT NULL DEFAULT 0,
    rewrites INTEGER NOT NULL,
    rows INTEGER NOT NULL DEFAULT 0,
    consented INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    sha256 TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS waiting ON conversations (arrived_at) WHERE part IS NULL;
CREATE INDEX IF NOT EXISTS of_part ON conversations (part) WHERE part IS NOT NULL;
CREATE INDEX IF NOT EXISTS to_remove ON conversations (removal) WHERE removal IS NOT NULL;
"""
_TAKE = """
INSERT INTO conversations (conversation_id, events, last_sequence, scenario, closed_at, outcome, partition,
    first_offset, last_offset, arrived_at)
VALUES (:id, 1, :sequence, :scenario, :closed_at, :outcome, :partition, :offset, :offset, :now)
ON CONFLICT (conversation_id) DO UPDATE SET
    events = events + 1, last_sequence = max(last_sequence, excluded.last_sequence),
    scenario = coalesce(scenario, excluded.scenario), closed_at = coalesce(closed_at, excluded.closed_at),
    outcome = outcome OR excluded.outcome, first_offset = min(first_offset, excluded.first_offset),
    last_offset = max(last_offset, excluded.last_offset), arrived_at = excluded.arrived_at
"""
FINISHED = (
    "part IS NULL AND closed_at IS NOT NULL AND events = last_sequence + 1 AND (outcome OR arrived_at <= :deadline)"
)
STUCK = "part IS NULL AND events < last_sequence + 1 AND arrived_at <= :deadline"
LATE = "came after its conversation had been closed and written"
CONFLICT = "differs from an earlier event under the same id"


class OutdatedDataset(RuntimeError):
    """The folder was made by a release that kept it in another form."""


@dataclass(frozen=True)
class Waiting:
    """A conversation that is not in any part."""

    conversation_id: str
    last_sequence: int
    partition: int
    first_offset: int
    last_offset: int


class Assembly:
    """Safe to use from several processes; one thread each."""

    def __init__(self, path: Path) -> None:
        self._db = open_database(path, "")
        with transaction(self._db) as db:
            (form,) = db.execute("PRAGMA user_version").fetchone()
            tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if tables and form != FORMAT:
                raise OutdatedDataset(
                    f"{path.parent} was made by an earlier release of sparring (format {form}, this one reads "
                    f"{FORMAT}): move the folder away, and the next worker makes it again from the event log"
                )
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {FORMAT}")
            # A new folder reads the log from its beginning, whatever another one has read.
            db.execute(
                "INSERT OR IGNORE INTO dataset (one, consumer_group, content) VALUES (1, ?, ?)",
                (f"dataset-{uuid.uuid4().hex[:8]}", ContentHash().state),
            )
        self.group: str = self._db.execute("SELECT consumer_group FROM dataset").fetchone()[0]

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A transaction."""
        with transaction(self._db) as db:
            yield db

    def rows(self, query: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return self._db.execute(query, parameters).fetchall()

    def value(self, query: str, parameters: Any = ()) -> Any:
        """The one value of a query."""
        return self._db.execute(query, parameters).fetchone()[0]

    def take(self, records: Sequence[Record], now: datetime) -> list[tuple[Record, str]]:
        """Take in a batch, durable on return. Those that make no sense are left out, and returned with the reason."""
        refused = []
        with self.change() as db:
            for record in records:
                try:
                    check_opening(record.event)
                    reason = _take(db, record, now.timestamp())
                except MalformedConversation as error:
                    reason = str(error)
                if reason is not None:
                    refused.append((record, reason))
            db.executemany(
                "INSERT INTO consumed VALUES (?, ?) ON CONFLICT (partition) "
                "DO UPDATE SET offset = max(offset, excluded.offset)",
                positions(records).items(),
            )
        return refused

    def finished(self, deadline: float, limit: int) -> tuple[str, list[Waiting]]:
        """Scenario and up to ``limit`` of its whole conversations: with an outcome, or quiet since ``deadline``."""
        found = self.rows(
            f"SELECT scenario FROM conversations WHERE {FINISHED} ORDER BY arrived_at LIMIT 1", {"deadline": deadline}
        )
        if not found:
            return "", []
        scenario = found[0][0]
        return scenario or "", self._waiting(f"{FINISHED} AND scenario IS :scenario", deadline, limit, scenario)

    def stuck(self, deadline: float, limit: int) -> list[Waiting]:
        """Conversations of which an event is missing, and nothing has come since ``deadline``."""
        return self._waiting(STUCK, deadline, limit, None)

    def events(self, conversation_id: str, after: int = -1) -> list[Record]:
        """Of one conversation, in order, those with a sequence number over ``after``."""
        found = self.rows(
            "SELECT offset, body, partition FROM events WHERE conversation_id = ? AND sequence > ? ORDER BY sequence",
            (conversation_id, after),
        )
        return [Record(offset, read_event(body), partition) for offset, body, partition in found]

    def close(self) -> None:
        self._db.close()

    def _waiting(self, where: str, deadline: float, limit: int, scenario: str | None) -> list[Waiting]:
        found = self.rows(
            "SELECT conversation_id, last_sequence, partition, first_offset, last_offset FROM conversations "
            f"WHERE {where} ORDER BY arrived_at, conversation_id LIMIT :limit",
            {"deadline": deadline, "limit": limit, "scenario": scenario},
        )
        return [Waiting(*row) for row in found]


def forget(db: sqlite3.Connection, conversations: Iterable[str], why: str | None) -> None:
    """Drop what is known of unwritten conversations. With ``why`` they never come back; without, a retry may."""
    for identity in conversations:
        db.execute("DELETE FROM events WHERE conversation_id = ?", (identity,))
        db.execute("DELETE FROM conversations WHERE conversation_id = ?", (identity,))
        if why is not None:
            db.execute("INSERT OR IGNORE INTO gone VALUES (?, ?)", (identity, why))


def _take(db: sqlite3.Connection, record: Record, now: float) -> str | None:
    event, payload = record.event, record.event.payload
    identity = event.conversation_id
    if db.execute("SELECT 1 FROM gone WHERE conversation_id = ?", (identity,)).fetchone():
        return None
    known = db.execute("SELECT part, written_to FROM conversations WHERE conversation_id = ?", (identity,)).fetchone()
    part, written_to = known or (None, -1)
    if isinstance(payload, Erased):
        if part is None:
            forget(db, [identity], payload.why)
        else:
            db.execute("UPDATE conversations SET removal = ? WHERE conversation_id = ?", (payload.why, identity))
        return None
    if part is not None:
        if event.sequence <= written_to:
            return None
        if not isinstance(payload, OutcomeReported):
            return LATE
    inserted = db.execute(
        "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?)",
        (identity, event.sequence, record.partition, record.offset, event.model_dump_json()),
    )
    if inserted.rowcount == 0:
        return None if fingerprint(_stored(db, event)) == fingerprint(event) else CONFLICT
    db.execute(
        _TAKE,
        {
            "id": identity,
            "sequence": event.sequence,
            "scenario": payload.context.scenario if isinstance(payload, Opened) else None,
            "closed_at": event.occurred_at.timestamp() if isinstance(payload, Closed) else None,
            "outcome": isinstance(payload, OutcomeReported),
            "partition": record.partition,
            "offset": record.offset,
            "now": now,
        },
    )
    return None


def _stored(db: sqlite3.Connection, event: ConversationEvent) -> ConversationEvent:
    found = db.execute(
        "SELECT body FROM events WHERE conversation_id = ? AND sequence = ?", (event.conversation_id, event.sequence)
    ).fetchone()
    return read_event(found[0])
