"""The unit tests' scripted service, and a real database to put under it."""

from __future__ import annotations

import importlib.util
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

_SHOP = Path(__file__).parents[1] / "unit" / "serving" / "conftest.py"
_spec = importlib.util.spec_from_file_location("scripted_shop", _SHOP)
assert _spec is not None
assert _spec.loader is not None
_shop = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _shop
_spec.loader.exec_module(_shop)

tokenizer = _shop.tokenizer
make_shop = _shop.make_shop

SERVER = "postgresql://postgres@127.0.0.1:5432/"
KILL = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s AND application_name LIKE %s
"""


@dataclass
class Database:
    """A database of its own on the server, dropped after the test."""

    name: str = field(default_factory=lambda: f"sparring_test_{uuid.uuid4().hex[:12]}")

    @property
    def url(self) -> str:
        return SERVER + self.name

    def server(self, statement: str, *values: object) -> None:
        with psycopg.connect(SERVER + "postgres", autocommit=True) as connection:
            connection.execute(statement, values or None)

    def kill(self, application: str = "sparring%") -> None:
        self.server(KILL, self.name, application)

    def shut(self) -> None:
        """As if the server were gone: nobody is let in, and who is in is thrown out."""
        self.server(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false")
        self.kill()

    def open(self) -> None:
        self.server(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS true")

    def rows(self, table: str) -> int:
        with psycopg.connect(self.url) as connection:
            found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert found is not None
        return int(found[0])


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database()
    try:
        database.server(f"CREATE DATABASE {database.name}")
    except psycopg.OperationalError as error:
        pytest.skip(f"start Postgres on 127.0.0.1:5432 with trust authentication: {error}")
    yield database
    database.server(f"DROP DATABASE {database.name} WITH (FORCE)")
