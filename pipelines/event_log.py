"""The embedded event log: one SQLite file, for one machine, shared by the service and the worker.

Durable before ``append`` returns (write-ahead log, ``synchronous=FULL``). Offsets are SQLite's AUTOINCREMENT row
ids: SQLite admits one writer at a time, so a reader never sees an offset before a smaller one. An event id is
kept once; a repeat is ignored if it says the same (``occurred_at`` aside, since a retry stamps anew) and is an
:class:`EventConflict` if it does not.

Left out on purpose: more than one machine (that is what Kafka is for), retention, and rebalancing of one group
between several consumers: two processes in one group see the same records.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from negotiation.event_log import DeadLetter, EventLogUnavailable, EventRefused, Record
from negotiation.events import CONVERSATIONS_TOPIC, ConversationEvent, UnreadableEvent, read_event

BUSY_TIMEOUT_SECONDS = 30.0
PARTITION = 0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    offset INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    fingerprint BLOB NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS committed (consumer_group TEXT PRIMARY KEY, offset INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dead_letters (
    offset INTEGER PRIMARY KEY,
    reason TEXT NOT NULL,
    body TEXT NOT NULL,
    recorded_at TEXT NOT NULL
);
"""

_RESTORE = "restore it from a backup, or move it away and a new, empty one is begun"
_REMEDIES = {
    sqlite3.SQLITE_NOTADB: _RESTORE,
    sqlite3.SQLITE_CORRUPT: _RESTORE,
    sqlite3.SQLITE_CANTOPEN: "it must be a file, in a folder that may be written to; correct it, or state_dir",
    sqlite3.SQLITE_READONLY: "let this user write to it and to its folder, or correct state_dir",
}


class EventConflict(EventRefused):
    """A different event under an event id that the log already holds: a corrupted or misbehaving writer."""


def open_database(path: Path, schema: str) -> sqlite3.Connection:
    """A durable SQLite database in autocommit mode, its tables created once however many processes open it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    # Two processes that switch a fresh file to the write-ahead log at once can fail without waiting.
    with FileLock(f"{path}.init.lock"):
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(schema)
    connection.execute("PRAGMA synchronous=FULL")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Take the write lock at once, commit at the end, roll back on any error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        # After some errors, such as those of a damaged file, SQLite has rolled back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


class SqliteEventLog:
    """``negotiation.event_log.EventLog`` on one SQLite file. Safe to call from many threads and processes.

    Opening and every call raise EventLogUnavailable for a file that is damaged, no database, or not accessible.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        with self._telling():
            self._connection = open_database(path, _SCHEMA)

    def append(self, events: Sequence[ConversationEvent]) -> None:
        """Durable on return, all or none. Raises EventConflict naming the event that contradicts the log."""
        rows = [_row(event) for event in events]
        with self._using() as database, transaction(database) as connection:
            for row, event in zip(rows, events, strict=True):
                self._insert(connection, event, row)

    def _insert(self, connection: sqlite3.Connection, event: ConversationEvent, row: tuple[str, bytes, str]) -> None:
        inserted = connection.execute(
            "INSERT OR IGNORE INTO events (event_id, fingerprint, body) VALUES (?, ?, ?)", row
        )
        if inserted.rowcount == 0:
            self._check_repeat(connection, event, row[1])

    def _check_repeat(self, connection: sqlite3.Connection, event: ConversationEvent, new: bytes) -> None:
        offset, known = connection.execute(
            "SELECT offset, fingerprint FROM events WHERE event_id = ?", (event.event_id,)
        ).fetchone()
        if known != new:
            raise EventConflict(
                event.event_id,
                f"event {event.sequence} ({event.payload.type}) of conversation {event.conversation_id} differs "
                f"from the one at offset {offset} of {self.path}: an event never changes, so two writers share "
                "a conversation; nothing of this batch was written",
            )

    def poll(self, group: str, limit: int) -> list[Record]:
        """Up to ``limit`` readable records after the group's offset. Unreadable ones become dead letters."""
        if limit < 1:
            raise ValueError(f"limit is {limit}, must be at least 1")
        records: list[Record] = []
        with self._using():
            after = self._committed(group)
            while len(records) < limit:
                rows = self._connection.execute(
                    # As bytes, whatever was put there: SQLite refuses to read text that is no UTF-8.
                    "SELECT offset, CAST(body AS BLOB) FROM events WHERE offset > ? AND offset NOT IN "
                    "(SELECT offset FROM dead_letters) ORDER BY offset LIMIT ?",
                    (after, limit - len(records)),
                ).fetchall()
                if not rows:
                    break
                for offset, body in rows:
                    after = offset
                    try:
                        records.append(Record(offset, read_event(body), PARTITION))
                    except UnreadableEvent as error:
                        self._bury(offset, body, str(error))
        return records

    def commit(self, group: str, handled: Mapping[int, int]) -> None:
        """Never moves backwards. Raises ValueError for an offset not reached yet, and for any partition but 0."""
        if not handled:
            return
        if set(handled) != {PARTITION}:
            raise ValueError(f"partitions {sorted(handled)}: the embedded log has only partition {PARTITION}")
        offset = handled[PARTITION]
        with self._using() as database, transaction(database) as connection:
            last = connection.execute("SELECT coalesce(max(offset), 0) FROM events").fetchone()[0]
            if offset > last:
                raise ValueError(f"group {group!r} commits offset {offset}, but {self.path} ends at {last}")
            connection.execute(
                "INSERT INTO committed VALUES (?, ?) ON CONFLICT (consumer_group) "
                "DO UPDATE SET offset = max(offset, excluded.offset)",
                (group, offset),
            )

    def lag(self, group: str) -> int:
        with self._using():
            count = self._connection.execute(
                "SELECT count(*) FROM events WHERE offset > ? AND offset NOT IN (SELECT offset FROM dead_letters)",
                (self._committed(group),),
            ).fetchone()[0]
        return int(count)

    def bury(self, record: Record, reason: str) -> None:
        """Dead-letter a record that can be read and yet makes no sense to its consumer."""
        with self._using():
            self._bury(record.offset, record.event.model_dump_json().encode(), reason)

    def dead_letters(self) -> dict[str, int]:
        """How many records were set aside, by reason."""
        with self._using():
            rows = self._connection.execute(
                "SELECT reason, count(*) FROM dead_letters GROUP BY reason ORDER BY reason"
            ).fetchall()
        return {str(reason): int(count) for reason, count in rows}

    def each_dead_letter(self) -> Iterator[DeadLetter]:
        """Those that there were at the call, in the order of their offsets."""
        with self._using():
            rows = self._connection.execute(
                "SELECT offset, reason, recorded_at, CAST(body AS BLOB) FROM dead_letters ORDER BY offset"
            ).fetchall()
        for offset, reason, recorded_at, body in rows:
            yield DeadLetter(
                reason=reason,
                topic=CONVERSATIONS_TOPIC,
                partition=PARTITION,
                offset=offset,
                recorded_at=datetime.fromisoformat(recorded_at),
                body=body,
            )

    def retry(self, letter: DeadLetter) -> None:
        """Move the event to the end of the log, in one transaction. Raises UnreadableEvent, or EventConflict."""
        event = read_event(letter.body)
        with self._using() as database, transaction(database) as connection:
            # The event id may be the old row's own, so that one goes first.
            connection.execute("DELETE FROM events WHERE offset = ?", (letter.offset,))
            self._insert(connection, event, _row(event))
            connection.execute("DELETE FROM dead_letters WHERE offset = ?", (letter.offset,))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._telling():
            yield self._connection

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """A file that is damaged, or cannot be opened at all, becomes EventLogUnavailable."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            # Extended codes have the kind in their lowest byte.
            remedy = _REMEDIES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
            if remedy is None:
                raise
            raise EventLogUnavailable(f"{self.path} can not be used as the event log ({error}): {remedy}") from error
        except OSError as error:
            remedy = _REMEDIES[sqlite3.SQLITE_CANTOPEN]
            raise EventLogUnavailable(f"{self.path} can not be used as the event log ({error}): {remedy}") from error

    def _committed(self, group: str) -> int:
        row = self._connection.execute("SELECT offset FROM committed WHERE consumer_group = ?", (group,)).fetchone()
        return 0 if row is None else int(row[0])

    def _bury(self, offset: int, body: bytes, reason: str) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO dead_letters VALUES (?, ?, ?, ?)",
            (offset, reason, body, datetime.now(UTC).isoformat()),
        )


def _row(event: ConversationEvent) -> tuple[str, bytes, str]:
    return event.event_id, fingerprint(event), event.model_dump_json()


def fingerprint(event: ConversationEvent) -> bytes:
    """sha256 over everything the event says except when it was said."""
    return hashlib.sha256(event.model_dump_json(exclude={"occurred_at"}).encode()).digest()


Progress = Callable[[int, int], None]
"""Called with (done, total) so that a front door can draw a bar."""
