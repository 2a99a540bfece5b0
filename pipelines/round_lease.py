"""One round at a time, whichever worker runs it: a lease with an owner and a fencing token.

On one machine an operating system lock on a file of the rounds folder, freed when its process dies. On several, which
share that folder, an advisory lock of Postgres, freed when the connection that took it ends; keep-alive probes end
that of a machine that vanished within half a minute. The token grows with every grant: a holder that was thought dead
finds a greater one at its next :meth:`HeldLease.check`, and stops. Checks also write down when the holder was last
seen, for people to look at.

Left out on purpose: taking the lease from a process that hangs but whose machine answers. End it by hand.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from filelock import FileLock, Timeout
from pydantic import BaseModel, SecretStr, ValidationError

from pipelines.config import PipelineSettings
from pipelines.round_state import write_atomically

LOCK_FILE, RECORD_FILE = "_round.lock", "_round-lease.json"
_NAME = "sparring round"
_TABLE = sa.table("sparring_round_leases", *map(sa.column, ("name", "owner", "token", "granted_at", "seen_at")))
_CREATE = """
CREATE TABLE IF NOT EXISTS sparring_round_leases (
    name text PRIMARY KEY,
    owner text NOT NULL,
    token bigint NOT NULL,
    granted_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL
)
"""
_GRANT = """
INSERT INTO sparring_round_leases AS held VALUES (:name, :owner, 1, now(), now())
ON CONFLICT (name) DO UPDATE SET owner = :owner, token = held.token + 1, granted_at = now(), seen_at = now()
RETURNING token
"""
# The lock is looked up, not believed in: a connection that was lost may have been replaced by one without it.
_CHECK = """
UPDATE sparring_round_leases SET seen_at = now()
WHERE name = :name AND token = :token AND EXISTS (
    SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((classid::bigint << 32) | objid::bigint) = :key
)
"""
_KEEP_ALIVE = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3}


class LeaseTaken(RuntimeError):
    """Another worker runs a round. Says which."""


class LeaseLost(RuntimeError):
    """This worker's right to go on with its round is gone; the next holder goes on with it."""


class LeaseUnavailable(RuntimeError):
    """The database that grants the lease can not be used."""


class HeldLease(Protocol):
    """A granted lease. ``token`` is greater than that of every earlier grant."""

    @property
    def owner(self) -> str: ...
    @property
    def token(self) -> int: ...
    def check(self) -> None:
        """Raise LeaseLost unless it is still held. Any thread; what it costs is one query at most."""
        ...


class RoundLease(Protocol):
    def hold(self) -> AbstractContextManager[HeldLease]:
        """A context in which no other worker runs a round. Raises LeaseTaken at once, LeaseUnavailable."""
        ...


def round_lease(settings: PipelineSettings) -> RoundLease:
    """The lease that the settings choose."""
    if settings.lease_database is not None:
        return PostgresLease(settings.lease_database)
    return FileLease(settings.rounds_dir)


def this_process() -> str:
    """Host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


class _Record(BaseModel):
    owner: str
    token: int


class FileLease:
    """For workers of one machine: file locks do not reliably hold over a network."""

    def __init__(self, rounds: Path, owner: str | None = None) -> None:
        self._rounds, self._owner = rounds, owner or this_process()

    @contextmanager
    def hold(self) -> Iterator[HeldLease]:
        self._rounds.mkdir(parents=True, exist_ok=True)
        record = self._rounds / RECORD_FILE
        # Not of one thread: training reports, and thereby checks, from its own.
        lock = FileLock(self._rounds / LOCK_FILE, blocking=False, thread_local=False)
        try:
            lock.acquire()
        except Timeout as error:
            holder = _read(record)
            raise LeaseTaken(f"a round is run by {holder.owner if holder else 'another process'}") from error
        try:
            before = _read(record)
            granted = _Record(owner=self._owner, token=before.token + 1 if before else 1)
            write_atomically(record, granted.model_dump_json())
            yield _HeldFile(lock, record, granted.owner, granted.token)
        finally:
            lock.release()


class _HeldFile:
    def __init__(self, lock: FileLock, record: Path, owner: str, token: int) -> None:
        self.owner, self.token = owner, token
        self._lock, self._record = lock, record

    def check(self) -> None:
        found = _read(self._record)
        if not self._lock.is_locked or found is None or found.token != self.token:
            holder = f"{found.owner} with token {found.token}" if found else "nobody"
            raise LeaseLost(f"the lease with token {self.token} of {self.owner} is gone, held by {holder}")


def _read(record: Path) -> _Record | None:
    try:
        return _Record.model_validate_json(record.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise LeaseUnavailable(f"{record} is damaged: delete it while no worker runs") from error


class PostgresLease:
    """For workers of several machines. ``url`` is a secret: it is never logged nor quoted.

    Advisory locks are of one database: give each deployment its own. Does not work behind a pooler that hands a
    connection to another client after each transaction.
    """

    def __init__(self, url: SecretStr, owner: str | None = None) -> None:
        self._url, self._owner = url, owner or this_process()
        self._key = int.from_bytes(hashlib.sha256(_NAME.encode()).digest()[:8], "big", signed=True)

    @contextmanager
    def hold(self) -> Iterator[HeldLease]:
        engine = self._engine()
        try:
            connection = self._connect(engine)
            try:
                yield _HeldRow(connection, self._key, self._owner, self._grant(connection))
            finally:
                # With its connection the lock is gone, whatever state it is in.
                connection.invalidate()
                connection.close()
        finally:
            engine.dispose()

    def _engine(self) -> sa.Engine:
        address = self._url.get_secret_value().split("://", 1)[1]
        return sa.create_engine(
            f"postgresql+psycopg://{address}",
            poolclass=sa.pool.NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={
                "application_name": "sparring round lease",
                "connect_timeout": 10,
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": 15_000,
            },
        )

    def _connect(self, engine: sa.Engine) -> sa.Connection:
        try:
            return engine.connect()
        except sa.exc.SQLAlchemyError as error:
            # Not chained: the driver's words may hold parts of the address.
            raise LeaseUnavailable(
                f"the database of [pipelines] lease_database can not be reached ({type(error).__name__}): start it, "
                "or correct the address"
            ) from None

    def _grant(self, connection: sa.Connection) -> int:
        try:
            for name, value in _KEEP_ALIVE.items():
                connection.exec_driver_sql(f"SET {name} = {value}")
            granted = connection.scalar(sa.select(sa.func.pg_try_advisory_lock(self._key)))
            if not granted:
                raise LeaseTaken(f"a round is run by {self._holder(connection)}")
            connection.exec_driver_sql(_CREATE)
            token = connection.scalar(sa.text(_GRANT), {"name": _NAME, "owner": self._owner})
        except sa.exc.SQLAlchemyError as error:
            raise LeaseUnavailable(f"the database did not grant the lease ({type(error).__name__})") from error
        assert token is not None
        return int(token)

    def _holder(self, connection: sa.Connection) -> str:
        if not sa.inspect(connection).has_table(_TABLE.name):
            return "another worker"
        owner = connection.scalar(sa.select(_TABLE.c.owner).where(_TABLE.c.name == _NAME))
        return str(owner) if owner else "another worker"


class _HeldRow:
    def __init__(self, connection: sa.Connection, key: int, owner: str, token: int) -> None:
        self.owner, self.token = owner, token
        self._connection, self._key = connection, key
        self._turn = threading.Lock()

    def check(self) -> None:
        with self._turn:
            try:
                parameters = {"name": _NAME, "token": self.token, "key": self._key}
                held = self._connection.execute(sa.text(_CHECK), parameters).rowcount == 1
            except sa.exc.SQLAlchemyError as error:
                raise LeaseLost(f"the connection that held the lease broke ({type(error).__name__})") from error
        if not held:
            raise LeaseLost(f"the lease with token {self.token} of {self.owner} is gone: another worker may hold it")
