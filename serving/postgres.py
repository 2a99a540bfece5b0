"""Conversations in Postgres: the connections, and the tables that LangGraph's saver and the store need.

The address is a libpq URI and a secret: it is never logged nor quoted in an error. A schema of its own can be named
in it (``?options=-csearch_path%3Dsparring``). LangGraph's pipeline mode is not used: with it a statement's failure
shows up at another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool
from pydantic import SecretStr

from serving.leases import lock_key
from serving.storage_errors import ONE_CHILD

Pool = AsyncConnectionPool[psycopg.AsyncConnection[DictRow]]

_FENCE = f"""
CREATE UNIQUE INDEX IF NOT EXISTS {ONE_CHILD}
ON checkpoints (thread_id, checkpoint_ns, (coalesce(parent_checkpoint_id, '')))
"""


@dataclass(frozen=True)
class Postgres:
    """One database, and how to connect to it."""

    url: SecretStr
    pool_size: int
    timeout_seconds: float

    def _options(self) -> dict[str, Any]:
        """A peer that vanished is noticed in seconds, not after the kernel's quarter of an hour."""
        return {
            "application_name": "sparring",
            "connect_timeout": max(2, round(self.timeout_seconds)),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 15_000,
        }

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        """A connection for locks, outside the pools and in autocommit."""
        options = {**self._options(), "application_name": "sparring leases"}
        return await psycopg.AsyncConnection.connect(self.url.get_secret_value(), autocommit=True, **options)

    @asynccontextmanager
    async def pool(self) -> AsyncIterator[Pool]:
        """Connections for checkpoints. Reconnects for as long as a caller waits, and then when the next one comes."""
        pool: Pool = AsyncConnectionPool(
            self.url.get_secret_value(),
            kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row, **self._options()},
            min_size=1,
            max_size=self.pool_size,
            timeout=self.timeout_seconds,
            reconnect_timeout=self.timeout_seconds,
            open=False,
            name="checkpoints",
        )
        async with pool:
            yield pool

    def engine(self) -> sa.Engine:
        """Connections for the store."""
        return sa.create_engine(
            "postgresql+psycopg://",
            creator=lambda: psycopg.connect(self.url.get_secret_value(), **self._options()),
            pool_size=self.pool_size,
            max_overflow=0,
            pool_timeout=self.timeout_seconds,
            hide_parameters=True,
        )

    async def create_tables(self, saver: AsyncPostgresSaver, store: sa.MetaData, engine: sa.Engine) -> None:
        """Create what is missing, one replica at a time. Raises psycopg.OperationalError if there is no database."""
        async with await self.connect() as connection:
            # Tried again and again rather than waited for: LangGraph builds indexes concurrently, and Postgres would
            # have it wait for everyone who waits for a lock.
            while True:
                cursor = await connection.execute("SELECT pg_try_advisory_lock(%s)", (lock_key("create tables"),))
                row = await cursor.fetchone()
                if row is not None and row[0]:
                    break
                await asyncio.sleep(0.1)
            await saver.setup()
            await connection.execute(_FENCE)
            await asyncio.to_thread(store.create_all, engine)
