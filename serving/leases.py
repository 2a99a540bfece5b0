"""Who may work on a conversation, between replicas that share one Postgres: session-level advisory locks.

All leases of a replica are held on one connection, so a thousand conversations in progress cost one and not a
thousand. If that connection breaks, Postgres lets go of them while steps still run; the unique index named in
``serving.storage_errors`` then keeps a second writer from forking a thread. Leases inside one process are the
caller's own work: Postgres grants a session the same lock twice. Does not work behind a pooler that hands a
connection to another client after each transaction.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import psycopg

from serving.storage_errors import storage_failures

log = logging.getLogger("serving")

Connection = psycopg.AsyncConnection[Any]


class LeaseTaken(Exception):
    """Another replica holds it."""


class Leases(Protocol):
    @property
    def shared(self) -> bool:
        """Whether other replicas may work on the same conversations."""
        ...

    def hold(self, names: Sequence[str]) -> AbstractAsyncContextManager[None]:
        """An async context in which this replica alone has all of ``names``. Raises LeaseTaken at once."""
        ...


class SoleReplica:
    """Nobody else works on these conversations: the state directory is locked."""

    shared = False

    @asynccontextmanager
    async def hold(self, names: Sequence[str]) -> AsyncIterator[None]:
        yield


class PostgresLeases:
    """Call :meth:`close` when done. ``connect`` gives an autocommit connection for these locks alone."""

    shared = True

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def hold(self, names: Sequence[str]) -> AsyncIterator[None]:
        keys = sorted({lock_key(name) for name in names})
        # Cancelling a lock statement half way would leave open whether it was granted: it always runs to its end.
        taking = self._spawn(self._take(keys))
        try:
            with storage_failures():
                connection = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._spawn(self._give_up(taking, keys))
            raise
        try:
            yield
        finally:
            await asyncio.shield(self._spawn(self._release(connection, keys)))

    async def close(self) -> None:
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    async def _take(self, keys: Sequence[int]) -> Connection:
        connection = await self._usable()
        try:
            await self._lock(connection, keys)
        except psycopg.OperationalError:
            # A connection that broke while idle is only noticed in use. Closed in any case: locks may be half taken.
            await connection.close()
            connection = await self._usable()
            await self._lock(connection, keys)
        return connection

    async def _lock(self, connection: Connection, keys: Sequence[int]) -> None:
        for place, key in enumerate(keys):
            cursor = await connection.execute("SELECT pg_try_advisory_lock(%s)", (key,))
            row = await cursor.fetchone()
            if row is None or not row[0]:
                await self._release(connection, keys[:place])
                raise LeaseTaken

    async def _release(self, connection: Connection, keys: Sequence[int]) -> None:
        try:
            for key in keys:
                await connection.execute("SELECT pg_advisory_unlock(%s)", (key,))
        except psycopg.OperationalError as error:
            # With the session the locks are gone as well.
            log.warning("the lease connection broke", extra={"error_type": type(error).__name__})
            await connection.close()

    async def _give_up(self, taking: asyncio.Task[Connection], keys: Sequence[int]) -> None:
        try:
            connection = await taking
        except (LeaseTaken, psycopg.Error):
            return
        await self._release(connection, keys)

    async def _usable(self) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = await self._connect()
            return self._connection

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


def lock_key(name: str) -> int:
    """A signed 64-bit number of its own for every name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
