"""Where conversations are kept between steps: LangGraph's SQLite saver, one file, one writer.

Only plain values are read back (no pickle, no import of classes named in the file). Of a conversation's
checkpoints only the newest matters; :meth:`ConversationCheckpoints.prune` drops the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

import aiosqlite
import langsmith
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import StateGraph
from langgraph.types import Command as Resume

from serving.flow import FlowState
from serving.record import ConversationRecord
from serving.steps import Decide, Step

DURABILITY: Literal["exit", "sync"] = "sync"
"""Every node's end is committed before the next node runs.

``exit`` (one commit a step) measured 10 ms of CPU time a request against 18 ms here and passes the same tests, since
a draft is never stored. ``sync`` is what an interrupt for a human's approval needs: what came before it is kept.
"""


class ConversationCheckpoints:
    """Runs steps of the flow, and reads conversations back."""

    def __init__(self, graph: StateGraph[FlowState], saver: AsyncSqliteSaver) -> None:
        self._graph = graph.compile(checkpointer=saver)
        self._saver = saver
        self._touched: set[str] = set()

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, graph: StateGraph[FlowState]) -> AsyncIterator[ConversationCheckpoints]:
        """Open or create the file. Commits reach the disk (synchronous=FULL) before they count."""
        path.parent.mkdir(parents=True, exist_ok=True)
        strict = JsonPlusSerializer(pickle_fallback=False, allowed_msgpack_modules=None)
        async with aiosqlite.connect(path) as connection:
            saver = AsyncSqliteSaver(connection, serde=strict)
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
        with langsmith.tracing_context(enabled=False):
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
        saved = await self._saver.aget_tuple(_config(conversation_id))
        values: dict[str, Any] = {} if saved is None else saved.checkpoint["channel_values"]
        kept = values.get("conversation")
        return None if kept is None else ConversationRecord.model_validate(kept)

    async def prune(self, conversation_ids: Iterable[str] | None = None) -> None:
        """Drop all but the newest checkpoint of the conversations given, or of those touched since last time."""
        ids = set(self._touched if conversation_ids is None else conversation_ids)
        self._touched -= ids
        newest = "(SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = :id)"
        for conversation_id in ids:
            async with self._saver.lock:
                for table in ("checkpoints", "writes"):
                    await self._saver.conn.execute(
                        f"DELETE FROM {table} WHERE thread_id = :id AND checkpoint_id < {newest}",
                        {"id": conversation_id},
                    )
                await self._saver.conn.commit()

    async def erase(self, conversation_id: str) -> None:
        """Delete everything that is kept of a conversation, from the write-ahead log too."""
        await self._saver.adelete_thread(conversation_id)
        self._touched.discard(conversation_id)
        async with self._saver.lock:
            await self._saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _config(conversation_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": conversation_id}}
