"""Where conversations are kept between steps: LangGraph's savers, on a SQLite file of one writer or on Postgres.

Only plain values are read back (no pickle, no import of classes named in the database). Of a conversation's
checkpoints only the newest matters, and each holds the whole of it; :meth:`ConversationCheckpoints.prune` drops the
others. A database that fails is answered 503 (``serving.storage_errors``).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import aiosqlite
import langsmith
import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import StateGraph
from langgraph.types import Command as Resume
from psycopg.rows import DictRow, dict_row
from psycopg_pool import PoolTimeout

from serving.flow import FlowState
from serving.postgres import Pool
from serving.record import ConversationRecord
from serving.steps import Decide, Step
from serving.storage_errors import storage_failures

_T = TypeVar("_T")

Observe = Callable[[str, float], object]
"""Told what was done (``read``, ``write``) and how many seconds it took."""

DURABILITY: Literal["exit", "sync"] = "sync"
"""Every node's end is committed before the next node runs.

``exit`` (one commit a step) measured 10 ms of CPU time a request against 18 ms here and passes the same tests, since
a draft is never stored. ``sync`` is what an interrupt for a human's approval needs: what came before it is kept.
"""


class _TimedSaver(BaseCheckpointSaver[str]):
    """Before a saver in the order of inheritance: tells how long it took."""

    observe: Observe

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        with self._timed("read"):
            return await super().aget_tuple(config)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        with self._timed("write"):
            return await super().aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        with self._timed("write"):
            await super().aput_writes(config, writes, task_id, task_path)

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(operation, time.perf_counter() - start)


class SqliteSaver(_TimedSaver, AsyncSqliteSaver):
    """Commits reach the disk (synchronous=FULL) before they count."""

    async def keep_newest(self, conversation_id: str) -> bool:
        newest = "(SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = :id)"
        async with self.lock:
            for table in ("checkpoints", "writes"):
                await self.conn.execute(
                    f"DELETE FROM {table} WHERE thread_id = :id AND checkpoint_id < {newest}",
                    {"id": conversation_id},
                )
            await self.conn.commit()
        return True


class PostgresSaver(_TimedSaver, AsyncPostgresSaver):
    """Each operation in a transaction, on a connection of its own: LangGraph's runs one at a time, in a pipeline.

    An operation whose connection was dead is tried again once. That is safe with every one of them: what was
    written is written again under the same key.
    """

    def __init__(self, pool: Pool, serde: JsonPlusSerializer) -> None:
        super().__init__(pool, serde=serde)
        self._pool = pool

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._twice(lambda: super(PostgresSaver, self).aget_tuple(config))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._twice(lambda: super(PostgresSaver, self).aput(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._twice(lambda: super(PostgresSaver, self).aput_writes(config, writes, task_id, task_path))

    async def keep_newest(self, conversation_id: str) -> bool:
        """False if a step changed the conversation meanwhile."""
        try:
            await self.aprune([conversation_id])
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            return False
        return True

    async def _twice(self, work: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await work()
        except PoolTimeout:
            raise
        except psycopg.OperationalError as error:
            # Without a state the connection itself failed; class 57 is the server shutting it down.
            if error.sqlstate is not None and not error.sqlstate.startswith("57P"):
                raise
            return await work()

    @asynccontextmanager
    async def _cursor(self, *, pipeline: bool = False) -> AsyncIterator[psycopg.AsyncCursor[DictRow]]:
        try:
            async with self._pool.connection() as connection:
                if pipeline:
                    async with (
                        connection.transaction(),
                        connection.cursor(binary=True, row_factory=dict_row) as cursor,
                    ):
                        yield cursor
                else:
                    async with connection.cursor(binary=True, row_factory=dict_row) as cursor:
                        yield cursor
        except psycopg.OperationalError:
            # One dead connection is seldom alone: the next caller must not be given another.
            await self._pool.check()
            raise


class ConversationCheckpoints:
    """Runs steps of the flow, and reads conversations back."""

    def __init__(self, graph: StateGraph[FlowState], saver: SqliteSaver | PostgresSaver) -> None:
        self._graph = graph.compile(checkpointer=saver)
        self._saver = saver
        self._touched: set[str] = set()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, graph: StateGraph[FlowState], observe: Observe = lambda operation, seconds: None
    ) -> AsyncIterator[ConversationCheckpoints]:
        """Open or create the SQLite file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        async with aiosqlite.connect(path) as connection:
            saver = SqliteSaver(connection, serde=strict_serializer())
            saver.observe = observe
            await saver.setup()
            await connection.execute("PRAGMA synchronous=FULL")
            # What is deleted is overwritten, not merely unlinked: see erase.
            await connection.execute("PRAGMA secure_delete=ON")
            yield cls(graph, saver)

    async def run(
        self, conversation_id: str, step: Step, listen: Callable[[str], object] | None = None
    ) -> ConversationRecord:
        """One run of the flow. On return the step is kept; on an exception the conversation is unchanged.

        ``listen`` is called with what may be shown of the reply before it is whole. A decision goes on with the run
        that waits for it; anything else begins a new one, and drops a run that waits.
        """
        self._touched.add(conversation_id)
        plain = step.model_copy(update={"stream": listen is not None}).model_dump(mode="json")
        given: Any = Resume(resume=plain) if isinstance(step.command, Decide) else {"step": plain}
        config = _config(conversation_id)
        result: dict[str, Any] = {}
        # Tracing is off whatever the environment says: it would send what customers wrote elsewhere.
        with storage_failures(), langsmith.tracing_context(enabled=False):
            if listen is None:
                result = await self._graph.ainvoke(given, config, durability=DURABILITY)
            else:
                parts = self._graph.astream(given, config, durability=DURABILITY, stream_mode=["custom", "values"])
                async for mode, part in parts:
                    if mode == "custom":
                        listen(str(part))
                    else:
                        result = cast("dict[str, Any]", part)
        return ConversationRecord.model_validate(result["conversation"])

    async def read(self, conversation_id: str) -> ConversationRecord | None:
        """The conversation as it was last kept; None if its first step never was."""
        with storage_failures():
            saved = await self._saver.aget_tuple(_config(conversation_id))
        values: dict[str, Any] = {} if saved is None else saved.checkpoint["channel_values"]
        kept = values.get("conversation")
        return None if kept is None else ConversationRecord.model_validate(kept)

    async def prune(self, conversation_ids: Iterable[str] | None = None) -> None:
        """Drop all but the newest checkpoint of the conversations given, or of those touched since last time."""
        ids = set(self._touched if conversation_ids is None else conversation_ids)
        self._touched -= ids
        for conversation_id in ids:
            if not await self._saver.keep_newest(conversation_id):
                self._touched.add(conversation_id)

    async def drop(self, conversation_id: str) -> None:
        """Drop everything kept of a conversation."""
        self._touched.discard(conversation_id)
        with storage_failures():
            await self._saver.adelete_thread(conversation_id)

    async def erase(self, conversation_id: str) -> None:
        """As :meth:`drop`, and from SQLite's write-ahead log. Postgres overwrites what was deleted as it vacuums."""
        await self.drop(conversation_id)
        if isinstance(self._saver, SqliteSaver):
            async with self._saver.lock:
                await self._saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def strict_serializer() -> JsonPlusSerializer:
    """Reads plain values only, whoever wrote the database."""
    return JsonPlusSerializer(pickle_fallback=False, allowed_msgpack_modules=None)


def _config(conversation_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": conversation_id}}
