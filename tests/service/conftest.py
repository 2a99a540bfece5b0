"""The unit tests' scripted service, and a real database and a real broker to put under it."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from kafka.admin import KafkaAdminClient

from pipelines.config import KafkaSettings

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


@dataclass
class KafkaBroker:
    """A broker of its own on one port and one folder, to be killed and started again."""

    program: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def settings(self, **changes: object) -> KafkaSettings:
        small = {"partitions": 3, "replication_factor": 1, "delivery_timeout_seconds": 3}
        return KafkaSettings.model_validate({"bootstrap_servers": self.address, **small, **changes})

    def start(self) -> None:
        options = ["--only", "kafka", "--kafka-port", str(self.port), "--data-dir", str(self.folder)]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as output:
            # The program starts another one: killed together, as one group.
            self.process = subprocess.Popen(
                [str(self.program), "start", *options], stdout=output, stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None, f"the broker ended: {Path(output.name).read_text()}"
                assert time.monotonic() < deadline, f"no broker on port {self.port} after 30 s"
                time.sleep(0.05)

    def kill(self) -> None:
        """``kill -9``, once it has saved what it acknowledged."""
        if self.process is not None:
            self._settle()
        self.end()

    def end(self) -> None:
        """For good, whatever it still had to save."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _settle(self) -> None:
        # It saves its state once a second. A Kafka broker would have it on other replicas by then.
        mark = f"settled-{uuid.uuid4().hex}"
        client = KafkaAdminClient(bootstrap_servers=self.address)
        client.create_topics({mark: {"num_partitions": 1, "replication_factor": 1}})
        client.close()
        saved, deadline = self.folder / "kafka.json", time.monotonic() + 30
        while not saved.is_file() or mark not in saved.read_text(errors="replace"):
            assert time.monotonic() < deadline, f"the broker saved nothing in {saved} within 30 s"
            time.sleep(0.05)


@pytest.fixture
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    program = Path(sys.executable).with_name("noida-db")
    if not program.is_file():
        pytest.skip("install the broker of the tests beside this Python: pip install noida-db (or the extra [dev])")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    broker = KafkaBroker(program, tmp_path_factory.mktemp("broker"), port)
    broker.start()
    try:
        yield broker
    finally:
        broker.end()
