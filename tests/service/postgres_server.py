"""A Postgres server of one's own, to be killed. Wants its programs (Debian: ``apt install postgresql``)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg


class NoPostgresPrograms(RuntimeError):
    """There is no Postgres to start on this machine."""


class PostgresServer:
    """A cluster in a folder. As root it runs under the account ``postgres``, since it refuses to be root."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self.account: dict[str, Any] = {}
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
            self.account = {"user": "postgres", "cwd": folder}
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        options = ["-A", "trust", "-U", "postgres", "-D", str(folder / "data")]
        subprocess.run([programs / "initdb", *options], check=True, capture_output=True, **self.account)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = ["-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder), "-h", "127.0.0.1"]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            # It does not start before the last process of a killed server has noticed and gone.
            if self.process is None or self.process.poll() is not None:
                self.process = subprocess.Popen(
                    [self.programs / "postgres", *options], stderr=subprocess.DEVNULL, **self.account
                )
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError("Postgres did not start within 60 s")

    def kill(self) -> None:
        """Without a chance to write anything; its processes end as soon as they see that it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def own_postgres() -> Iterator[PostgresServer]:
    """Started, and killed on leaving. Raises NoPostgresPrograms."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("initdb")
    if not versions and found is None:
        raise NoPostgresPrograms("install a Postgres server (Debian: apt install postgresql): initdb was not found")
    programs = versions[-1] if versions else Path(str(found)).parent
    with tempfile.TemporaryDirectory(prefix="sparring-pg-") as folder:
        server = PostgresServer(programs, Path(folder))
        server.start()
        yield server
        server.kill()
