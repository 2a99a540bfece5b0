"""``kill -9`` of Postgres in mid-conversation: what was acknowledged is there, nothing twice, and talk goes on.

Starts a Postgres server of its own; wants its programs (Debian: ``apt install postgresql``).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from negotiation.roles import Role

pytestmark = pytest.mark.service

CONVERSATIONS, MESSAGES = 8, 4


class Server:
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
        pytest.fail("Postgres did not start within 60 s")

    def kill(self) -> None:
        """Without a chance to write anything; its processes end as soon as they see that it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def server() -> Iterator[Server]:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("initdb")
    if not versions and found is None:
        pytest.skip("install a Postgres server (Debian: apt install postgresql): initdb was not found")
    programs = versions[-1] if versions else Path(str(found)).parent
    with tempfile.TemporaryDirectory(prefix="sparring-pg-") as folder:
        server = Server(programs, Path(folder))
        server.start()
        yield server
        server.kill()


async def talk(shop: Any, number: int) -> tuple[str, set[int]]:
    """One customer who sends again, under the same key, what was not acknowledged."""
    statuses: set[int] = set()

    async def insist(send: Any) -> Any:
        for _ in range(400):
            answer = await send()
            statuses.add(answer.status_code)
            if answer.status_code in (200, 201):
                return answer.json()
            await asyncio.sleep(0.05)
        raise AssertionError(f"never answered: {statuses}")

    headers = {"Idempotency-Key": f"open-{number}"}
    body = shop.opening(number, Role.COUNTERPART)
    opened = await insist(lambda: shop.client.post("/v1/conversations", json=body, headers=headers))
    for turn in range(MESSAGES):
        text, key = f"Message {turn}", f"{number}-{turn}"
        await insist(lambda text=text, key=key: shop.say(opened["id"], text, key=key))
    return opened["id"], statuses


@pytest.mark.timeout(120)
async def test_acknowledged_turns_survive_kill_nine_of_postgres(make_shop: Any, server: Server) -> None:
    async with make_shop(checkpoints_url=server.url, checkpoints_timeout_seconds=1) as shop:
        talking = [asyncio.create_task(talk(shop, number)) for number in range(CONVERSATIONS)]
        for kills in (1, 2):
            while len(shop.engine.requests) < kills * CONVERSATIONS * MESSAGES // 3:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
        spoken = await asyncio.gather(*talking)
        statuses = set().union(*(each for _, each in spoken))
        assert 503 in statuses, "the kills came in the middle"
        assert statuses <= {200, 201, 409, 503}
        for identity, _ in spoken:
            events = await shop.logged(identity)
            assert [event.sequence for event in events] == list(range(len(events)))
            texts = [event.payload.text for event in events if event.payload.type == "message"]
            assert texts == [text for turn in range(MESSAGES) for text in (f"Message {turn}", "Good day.")]
            shown = (await shop.client.get(f"/v1/conversations/{identity}")).json()
            assert [turn["text"] for turn in shown["turns"]] == texts
