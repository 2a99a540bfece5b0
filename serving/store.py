"""The service's own small tables: which conversations there are, and what was answered to which Idempotency-Key.

What a conversation holds is in its checkpoint; this says whose it is, which adapter it is pinned to, whether it is
open, and whether its last step may be unfinished (``pending``: set before a step, cleared in the transaction that
puts its events into the outbox, a table of the same database: ``serving.outbox``). One implementation over a SQLite
file and over Postgres, where replicas share it. Commits reach the disk before they count (in SQLite
synchronous=FULL).

Of an erased conversation only this row stays, without any text: its id must not be used again, since event ids come
from it. What is deleted from a SQLite file is overwritten in it (secure_delete), not merely unlinked.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from negotiation.events import ConversationEvent
from serving.outbox import OUTBOX, TABLES, put
from serving.storage_errors import storage_failures

_T = TypeVar("_T")

_CONVERSATIONS = sa.Table(
    "conversations",
    TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("adapter", sa.Text, nullable=False),
    sa.Column("open", sa.Integer, nullable=False),
    sa.Column("pending", sa.Integer, nullable=False),
    sa.Column("touched", sa.Double, nullable=False),
    sa.Column("erased", sa.Integer, nullable=False, server_default="0"),
    sa.Index("conversations_open", "open", "touched"),
    sqlite_with_rowid=False,
)
sa.Index(
    "conversations_pending",
    _CONVERSATIONS.c.id,
    sqlite_where=_CONVERSATIONS.c.pending == 1,
    postgresql_where=_CONVERSATIONS.c.pending == 1,
)
_ANSWERS = sa.Table(
    "answers",
    TABLES,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("given", sa.Double, nullable=False),
    sa.Column("conversation_id", sa.Text),
    sa.Index("answers_given", "given"),
    sa.Index("answers_of", "conversation_id"),
    sqlite_with_rowid=False,
)
_ADDED = (
    ("conversations", "erased", "INTEGER NOT NULL DEFAULT 0"),
    ("answers", "conversation_id", "TEXT"),
)
"""Columns that SQLite files of earlier versions lack."""
_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


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


def sqlite_engine(path: Path) -> sa.Engine:
    """The file, made with its tables if there is none. One connection, for one thread at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=sa.StaticPool,
        connect_args={"check_same_thread": False},
        hide_parameters=True,
    )

    @sa.event.listens_for(engine, "connect")
    def durable(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA secure_delete=ON")

    TABLES.create_all(engine)
    with engine.begin() as connection:
        for table, column, kind in _ADDED:
            if column not in {known["name"] for known in sa.inspect(connection).get_columns(table)}:
                connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN {column} {kind}"))
        connection.execute(sa.text("CREATE INDEX IF NOT EXISTS answers_of ON answers (conversation_id)"))
    return engine


class ConversationStore:
    """All calls run on threads of its own, so the event loop never waits for the database."""

    def __init__(self, engine: sa.Engine, clock: Callable[[], float] = time.time, *, threads: int = 1) -> None:
        self._engine = engine
        self._insert = _INSERT[engine.dialect.name]
        self._clock = clock
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="store")

    async def answer(self, tenant: str, key: str) -> StoredAnswer | None:
        """What this tenant's key was answered, if it was."""
        return await self.run(lambda db: _answer(db, tenant, key))

    async def register(self, conversation_id: str, tenant: str, adapter: str) -> None:
        """Note a conversation before its first step. Registering again (a retry) takes the new adapter."""
        row = {"id": conversation_id, "tenant": tenant, "adapter": adapter, "touched": self._clock()}
        statement = self._insert(_CONVERSATIONS).values(open=1, pending=1, **row)
        changes = {"adapter": statement.excluded.adapter, "pending": 1}
        await self.run(lambda db: db.execute(statement.on_conflict_do_update(index_elements=["id"], set_=changes)))

    async def begin(
        self, conversation_id: str, tenant: str, key: str | None
    ) -> tuple[ConversationRow | None, StoredAnswer | None]:
        """The conversation as it was before this step, and the answer to the key if one was given.

        Marks the conversation pending unless there is an answer already. None for another tenant's, and erased ones.
        """

        def work(db: sa.Connection) -> tuple[ConversationRow | None, StoredAnswer | None]:
            row = _conversation(db, conversation_id, tenant)
            if row is None or row.erased:
                return None, None
            answer = None if key is None else _answer(db, tenant, key)
            if answer is None:
                db.execute(_changes(conversation_id).values(pending=1))
            return row, answer

        return await self.run(work)

    async def finish(
        self,
        conversation_id: str,
        events: Sequence[ConversationEvent],
        *,
        still_open: bool,
        answer: tuple[str, str, str, dict[str, Any]] | None = None,
    ) -> None:
        """Queue the step's events and end it. ``answer``: tenant, key, fingerprint and body, kept for retries."""
        now = self._clock()

        def work(db: sa.Connection) -> None:
            put(db, self._insert, events, self._clock())
            db.execute(_changes(conversation_id).values(open=int(still_open), pending=0, touched=now))
            if answer is not None:
                self._keep(db, answer, conversation_id)

        await self.run(work)

    async def queue(self, events: Sequence[ConversationEvent]) -> None:
        """Put events into the outbox. One that is there already is kept once."""
        await self.run(lambda db: put(db, self._insert, events, self._clock()))

    async def keep_answer(self, tenant: str, key: str, fingerprint: str, body: dict[str, Any]) -> None:
        """Keep what a key was answered where no conversation is concerned."""
        await self.run(lambda db: self._keep(db, (tenant, key, fingerprint, body), None))

    async def owned(self, conversation_id: str, tenant: str) -> bool:
        """Whether the tenant has a conversation of that id, not erased."""
        row = await self.row(conversation_id, tenant)
        return row is not None and not row.erased

    async def row(self, conversation_id: str, tenant: str) -> ConversationRow | None:
        """The tenant's conversation of that id, erased or not."""
        return await self.run(lambda db: _conversation(db, conversation_id, tenant))

    async def erase(self, conversation_id: str) -> None:
        """Delete a conversation's answers and unpublished events; erased, and pending until :meth:`erasure_done`."""

        def work(db: sa.Connection) -> None:
            for table in (_ANSWERS, OUTBOX):
                db.execute(table.delete().where(table.c.conversation_id == conversation_id))
            db.execute(_changes(conversation_id).values(open=0, pending=1, erased=1))

        await self.run(work)
        if self._engine.dialect.name == "sqlite":
            # The log beside the file holds the pages as they were before.
            await self.run(lambda db: db.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").close())

    async def erasure_done(self, conversation_id: str) -> None:
        """Nothing of the conversation is left elsewhere."""
        await self.run(lambda db: db.execute(_changes(conversation_id).values(pending=0)))

    async def unfinished_erasures(self) -> list[ConversationRow]:
        """Erased conversations of which something may be left elsewhere."""
        table = _CONVERSATIONS
        return await self._rows(table.select().where(table.c.pending == 1, table.c.erased == 1))

    async def retire(self, conversation_id: str) -> None:
        """Mark a closed conversation erased: nothing of it is left elsewhere."""
        await self.run(lambda db: db.execute(_changes(conversation_id).values(erased=1)))

    async def forget(self, conversation_id: str) -> None:
        """Drop a conversation whose first step was never kept."""
        await self.run(lambda db: db.execute(_CONVERSATIONS.delete().where(_CONVERSATIONS.c.id == conversation_id)))

    async def unfinished(self) -> list[ConversationRow]:
        """Conversations that are open or whose last step may be unfinished."""
        table = _CONVERSATIONS
        started = sa.or_(table.c.open == 1, table.c.pending == 1)
        return await self._rows(table.select().where(started, table.c.erased == 0))

    async def idle_since(self, before: float, limit: int = 256) -> list[ConversationRow]:
        """Open conversations not touched since then, longest idle first."""
        return await self._rows(_untouched(1, before, limit))

    async def closed_before(self, before: float, limit: int = 256) -> list[ConversationRow]:
        """Closed conversations whose events are queued, not erased and not touched since then; oldest first."""
        settled = (_CONVERSATIONS.c.pending == 0, _CONVERSATIONS.c.erased == 0)
        return await self._rows(_untouched(0, before, limit).where(*settled))

    async def pending_since(self, before: float, limit: int = 256) -> list[ConversationRow]:
        """Conversations whose last step may be unfinished, not touched since then."""
        table = _CONVERSATIONS
        unfinished = (table.c.pending == 1, table.c.erased == 0, table.c.touched < before)
        return await self._rows(table.select().where(*unfinished).limit(limit))

    async def open_now(self) -> list[ConversationRow]:
        """All open conversations."""
        return await self._rows(_CONVERSATIONS.select().where(_CONVERSATIONS.c.open == 1))

    async def drop_answers(self, before: float) -> None:
        """Forget answers given before then."""
        await self.run(lambda db: db.execute(_ANSWERS.delete().where(_ANSWERS.c.given < before)))

    def now(self) -> float:
        return self._clock()

    def close(self) -> None:
        self._threads.shutdown()
        self._engine.dispose()

    def _keep(self, db: sa.Connection, answer: tuple[str, str, str, dict[str, Any]], of: str | None) -> None:
        tenant, key, fingerprint, body = answer
        kept = {"tenant": tenant, "key": key, "fingerprint": fingerprint, "body": json.dumps(body)}
        row = {**kept, "given": self._clock(), "conversation_id": of}
        db.execute(self._insert(_ANSWERS).values(**row).on_conflict_do_nothing())

    async def _rows(self, query: sa.Select[Any]) -> list[ConversationRow]:
        return [_row(found) for found in await self.run(lambda db: db.execute(query).all())]

    async def run(self, work: Callable[[sa.Connection], _T]) -> _T:
        """``work`` in one transaction.

        Tried again once if its connection was dead: done twice, each of them does no more.
        """

        def transaction() -> _T:
            with self._engine.begin() as connection:
                return work(connection)

        def tried_again() -> _T:
            with storage_failures():
                try:
                    return transaction()
                except sa.exc.DBAPIError as error:
                    if not error.connection_invalidated:
                        raise
                    return transaction()

        return await asyncio.get_running_loop().run_in_executor(self._threads, tried_again)


def _changes(conversation_id: str) -> sa.Update:
    return _CONVERSATIONS.update().where(_CONVERSATIONS.c.id == conversation_id)


def _untouched(is_open: int, before: float, limit: int) -> sa.Select[Any]:
    columns = _CONVERSATIONS.c
    query = _CONVERSATIONS.select().where(columns.open == is_open, columns.touched < before)
    return query.order_by(columns.touched).limit(limit)


def _row(found: sa.Row[Any]) -> ConversationRow:
    still_open, pending, erased = bool(found.open), bool(found.pending), bool(found.erased)
    return ConversationRow(found.id, found.tenant, found.adapter, still_open, pending, found.touched, erased)


def _conversation(db: sa.Connection, conversation_id: str, tenant: str) -> ConversationRow | None:
    columns = _CONVERSATIONS.c
    query = _CONVERSATIONS.select().where(columns.id == conversation_id, columns.tenant == tenant)
    found = db.execute(query).first()
    return None if found is None else _row(found)


def _answer(db: sa.Connection, tenant: str, key: str) -> StoredAnswer | None:
    query = sa.select(_ANSWERS.c.fingerprint, _ANSWERS.c.body)
    found = db.execute(query.where(_ANSWERS.c.tenant == tenant, _ANSWERS.c.key == key)).first()
    return None if found is None else StoredAnswer(found[0], json.loads(found[1]))
