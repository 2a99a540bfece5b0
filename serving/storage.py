"""Opens what conversations are kept in, as the settings say: SQLite files of one process, or a shared Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from langgraph.graph import StateGraph

from serving.checkpoints import ConversationCheckpoints, Observe, PostgresSaver, strict_serializer
from serving.config import ServingSettings
from serving.flow import FlowState
from serving.leases import Leases, PostgresLeases, SoleReplica
from serving.postgres import Postgres
from serving.storage_errors import storage_failures
from serving.store import TABLES, ConversationStore, sqlite_engine


@dataclass(frozen=True)
class Storage:
    checkpoints: ConversationCheckpoints
    store: ConversationStore
    leases: Leases


@asynccontextmanager
async def open_storage(
    settings: ServingSettings, graph: StateGraph[FlowState], observe: Observe
) -> AsyncIterator[Storage]:
    """Connect, and create what is missing. Raises ApiError if there is no such database."""
    async with AsyncExitStack() as stack:
        if settings.checkpoints_url is None:
            path = settings.state_dir / "checkpoints.db"
            checkpoints = await stack.enter_async_context(ConversationCheckpoints.open(path, graph, observe))
            store = ConversationStore(sqlite_engine(settings.state_dir / "serving.db"))
            stack.callback(store.close)
            yield Storage(checkpoints, store, SoleReplica())
            return
        database = Postgres(
            settings.checkpoints_url, settings.checkpoints_pool_size, settings.checkpoints_timeout_seconds
        )
        engine = database.engine()
        with storage_failures():
            pool = await stack.enter_async_context(database.pool())
            saver = PostgresSaver(pool, strict_serializer())
            saver.observe = observe
            await database.create_tables(saver, TABLES, engine)
        store = ConversationStore(engine, threads=settings.checkpoints_pool_size)
        stack.callback(store.close)
        leases = PostgresLeases(database.connect)
        stack.push_async_callback(leases.close)
        yield Storage(ConversationCheckpoints(graph, saver), store, leases)
