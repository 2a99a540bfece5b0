"""The service's own small tables: which conversations there are, and what was answered to which Idempotency-Key.

What a conversation holds is in its checkpoint; this says whose it is, which adapter it is pinned to, whether
it is open, and whether its last step may be unfinished (``pending``: set before a step, cleared once its
events are in the log). Commits reach the disk before they count (synchronous=FULL).

Of an erased conversation only this row stays, without any text: its id must not be used again, since event ids come
from it. What is deleted is overwritten in the file (secure_delete), not merely unlinked.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, adapter TEXT NOT NULL,
    open INTEGER NOT NULL, pending INTEGER NOT NULL, touched REAL NOT NULL, erased INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS conversations_open ON conversations (open, touched);
CREATE INDEX IF NOT EXISTS conversations_pending ON conversations (id) WHERE pending = 1;
CREATE TABLE IF NOT EXISTS answers (
    tenant TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, body TEXT NOT NULL, given REAL NOT NULL,
    conversation_id TEXT,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_given ON answers (given);
"""
_ADDED = (
    ("conversations", "erased", "INTEGER NOT NULL DEFAULT 0"),
    ("answers", "conversation_id", "TEXT"),
)
"""Columns that files of earlier versions lack."""
_INDEX_ON_ADDED = "CREATE INDEX IF NOT EXISTS answers_of ON answers (conversation_id)"
_KEEP_ANSWER = (
    "INSERT OR IGNORE INTO answers (tenant, key, fingerprint, body, given, conversation_id) VALUES (?, ?, ?, ?, ?, ?)"
)
_ROW = "id, tenant, adapter, open, pending, touched, erased"


@dataclass(frozen=True)
class ConversationRow:
    """``touched`` is the time of the last step, seconds since the epoch."""

    id: str
    tenant: str
    adapter: str
    open: bool
    pending: bool
    touched: float
    erased: bool = False


@dataclass(frozen=True)
class StoredAnswer:
    fingerprint: str
    body: dict[str, Any]


class ConversationStore:
    """All calls run on one thread of its own, so the event loop never waits for the disk."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("PRAGMA secure_delete=ON")
        self._connection.executescript(_SCHEMA)
        for table, column, kind in _ADDED:
            known = {row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")}
            if column not in known:
                self._connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
        self._connection.execute(_INDEX_ON_ADDED)

    async def answer(self, tenant: str, key: str) -> StoredAnswer | None:
        """What this tenant's key was answered, if it was."""
        return await self._do(lambda db: _answer(db, tenant, key))

    async def register(self, conversation_id: str, tenant: str, adapter: str) -> None:
        """Note a conversation before its first step. Registering again (a retry) takes the new adapter."""
        values = (conversation_id, tenant, adapter, self._clock())
        await self._do(
            lambda db: db.execute(
                "INSERT INTO conversations (id, tenant, adapter, open, pending, touched) VALUES (?, ?, ?, 1, 1, ?) "
                "ON CONFLICT (id) DO UPDATE SET adapter = excluded.adapter, pending = 1",
                values,
            )
        )

    async def begin(
        self, conversation_id: str, tenant: str, key: str | None
    ) -> tuple[ConversationRow | None, StoredAnswer | None]:
        """The conversation as it was before this step, and the answer to the key if one was given.

        Marks the conversation pending unless there is an answer already. None for another tenant's, and erased ones.
        """

        def work(db: sqlite3.Connection) -> tuple[ConversationRow | None, StoredAnswer | None]:
            row = _conversation(db, conversation_id, tenant)
            if row is None or row.erased:
                return None, None
            answer = None if key is None else _answer(db, tenant, key)
            if answer is None:
                db.execute("UPDATE conversations SET pending = 1 WHERE id = ?", (conversation_id,))
            return row, answer

        return await self._do(work)

    async def finish(
        self, conversation_id: str, *, still_open: bool, answer: tuple[str, str, str, dict[str, Any]] | None = None
    ) -> None:
        """The step's events are in the log. ``answer``: tenant, key, fingerprint and body, kept for retries."""
        now = self._clock()

        def work(db: sqlite3.Connection) -> None:
            db.execute("BEGIN")
            db.execute(
                "UPDATE conversations SET open = ?, pending = 0, touched = ? WHERE id = ?",
                (still_open, now, conversation_id),
            )
            if answer is not None:
                tenant, key, fingerprint, body = answer
                db.execute(_KEEP_ANSWER, (tenant, key, fingerprint, json.dumps(body), now, conversation_id))
            db.execute("COMMIT")

        await self._do(work)

    async def keep_answer(self, tenant: str, key: str, fingerprint: str, body: dict[str, Any]) -> None:
        """Keep what a key was answered where no conversation is concerned."""
        values = (tenant, key, fingerprint, json.dumps(body), self._clock(), None)
        await self._do(lambda db: db.execute(_KEEP_ANSWER, values))

    async def owned(self, conversation_id: str, tenant: str) -> bool:
        """Whether the tenant has a conversation of that id, not erased."""
        row = await self.row(conversation_id, tenant)
        return row is not None and not row.erased

    async def row(self, conversation_id: str, tenant: str) -> ConversationRow | None:
        """The tenant's conversation of that id, erased or not."""
        return await self._do(lambda db: _conversation(db, conversation_id, tenant))

    async def erase(self, conversation_id: str) -> None:
        """Delete the answers of a conversation and mark it erased; pending until :meth:`erasure_done`."""

        def work(db: sqlite3.Connection) -> None:
            db.execute("BEGIN")
            db.execute("DELETE FROM answers WHERE conversation_id = ?", (conversation_id,))
            db.execute(
                "UPDATE conversations SET open = 0, pending = 1, erased = 1 WHERE id = ?",
                (conversation_id,),
            )
            db.execute("COMMIT")
            # The log beside the file holds the pages as they were before.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        await self._do(work)

    async def erasure_done(self, conversation_id: str) -> None:
        """Nothing of the conversation is left elsewhere."""
        await self._do(lambda db: db.execute("UPDATE conversations SET pending = 0 WHERE id = ?", (conversation_id,)))

    async def unfinished_erasures(self) -> list[ConversationRow]:
        """Erased conversations of which something may be left elsewhere."""
        return await self._rows(f"SELECT {_ROW} FROM conversations WHERE pending = 1 AND erased = 1", ())

    async def forget(self, conversation_id: str) -> None:
        """Drop a conversation whose first step was never kept."""
        await self._do(lambda db: db.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,)))

    async def unfinished(self) -> list[ConversationRow]:
        """Conversations that are open or whose last step may be unfinished."""
        query = f"SELECT {_ROW} FROM conversations WHERE (open = 1 OR pending = 1) AND erased = 0"
        return await self._rows(query, ())

    async def idle_since(self, before: float, limit: int = 256) -> list[ConversationRow]:
        """Open conversations not touched since then, longest idle first."""
        query = f"SELECT {_ROW} FROM conversations WHERE open = 1 AND touched < ? ORDER BY touched LIMIT ?"
        return await self._rows(query, (before, limit))

    async def drop_answers(self, before: float) -> None:
        """Forget answers given before then."""
        await self._do(lambda db: db.execute("DELETE FROM answers WHERE given < ?", (before,)))

    def now(self) -> float:
        return self._clock()

    def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()

    async def _rows(self, query: str, values: tuple[object, ...]) -> list[ConversationRow]:
        found = await self._do(lambda db: db.execute(query, values).fetchall())
        return [row for row in map(_row, found) if row is not None]

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, self._connection)


def _row(values: tuple[Any, ...] | None) -> ConversationRow | None:
    if values is None:
        return None
    identity, tenant, adapter, is_open, pending, touched, erased = values
    return ConversationRow(identity, tenant, adapter, bool(is_open), bool(pending), touched, bool(erased))


def _conversation(db: sqlite3.Connection, conversation_id: str, tenant: str) -> ConversationRow | None:
    query = f"SELECT {_ROW} FROM conversations WHERE id = ? AND tenant = ?"
    return _row(db.execute(query, (conversation_id, tenant)).fetchone())


def _answer(db: sqlite3.Connection, tenant: str, key: str) -> StoredAnswer | None:
    query = "SELECT fingerprint, body FROM answers WHERE tenant = ? AND key = ?"
    found = db.execute(query, (tenant, key)).fetchone()
    return None if found is None else StoredAnswer(found[0], json.loads(found[1]))
