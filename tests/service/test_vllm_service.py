"""``sparring serve`` on a real vLLM server: a promotion under load, and ``kill -9`` of vLLM in mid-conversation."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from negotiation.adapter import AdapterName
from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from negotiation.scenario import Context
from serving.auth import KeyStore
from serving.client import SparringClient, Unavailable
from sparring.compose import open_registry
from sparring.demo.customers import Customers, Stream
from sparring.demo.processes import Children, free_port
from sparring.settings import Settings, load_settings
from tests.service.vllm_servers import VllmServer, bundled, needs_vllm, random_adapter
from training.counterparts import negotiators

pytestmark = [pytest.mark.service, pytest.mark.timeout(600), needs_vllm]
SCENARIO = scenario_named("telesales")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VllmServer]:
    started = VllmServer(tmp_path, bundled()).start()
    try:
        yield started.wait()
    finally:
        started.kill()


def configure(folder: Path, url: str) -> Path:
    path = folder / "sparring.toml"
    path.write_text(
        f'state_dir = "{folder / "var"}"\n[serving]\nreconcile_seconds = 0.5\nmax_tokens = 24\n'
        f'[serving.vllm]\nurls = ["{url}"]\nprobe_seconds = 0.5\n'
    )
    return path


def register(settings: Settings, folder: Path, seed: int) -> int:
    """The next version of both roles, with weights of its own."""
    registry = open_registry(settings, bundled())
    run = registry.start_run(f"seed {seed}")
    version = registry.reserve(run)
    for role in Role:
        name = str(AdapterName(role=role, version=version))
        registry.register(role, random_adapter(bundled(), folder, name, seed, spread=0.02), run, {})
    return version


def opening(seed: int) -> Context:
    """A conversation in which the customer speaks first, so that opening it needs no model."""
    return SCENARIO.generate(seed).model_copy(update={"first_speaker": Role.COUNTERPART})


async def test_promotion_under_load_and_kill_9_of_vllm(server: VllmServer, tmp_path: Path) -> None:
    config = configure(tmp_path, server.url)
    settings = load_settings(config)
    version = register(settings, tmp_path, seed=1)
    registry = open_registry(settings, bundled())
    keys = KeyStore(settings.serving.keys_path)
    tenant, admin = keys.create_key("acme"), keys.create_key("acme", "admin")
    port = free_port(8830)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "sparring.cli", "serve", "--port", str(port), "--config", str(config)]
    customers = Customers(SCENARIO, negotiators("telesales", Role.COUNTERPART, "train"), 0)
    with Children(tmp_path / "var", {"HF_HUB_OFFLINE": "1"}) as children:
        service = children.start("service", command)
        async with SparringClient(url, tenant, retries=0) as client, SparringClient(url, admin) as operator:
            while not await client.ready():
                service.check()
                await asyncio.sleep(0.2)
            pinned = [(await client.open_conversation(opening(seed))).id for seed in range(4)]
            for place in pinned:
                await client.send_message(place, "hello")

            stream = Stream(client, customers, at_once=16, pause_seconds=0.0)
            registry.promote(Role.AGENT, version, expected=1)
            while (shown := await operator.adapters()).current != f"agent@{version}":
                stream.check()
                await asyncio.sleep(0.1)
            calls = len(stream.tally.calls)
            while len(stream.tally.calls) < calls + 20:
                stream.check()
                await asyncio.sleep(0.1)
            tally = await stream.stop()
            assert tally.failures == 0, tally.errors
            assert set(tally.by_adapter()) <= {"agent@1", f"agent@{version}"}
            assert [replica.state for replica in shown.replicas] == ["up"]
            before = {place: await client.get_conversation(place) for place in pinned}
            assert {one.adapter for one in before.values()} == {"agent@1"}
            still_open = [place for place, one in before.items() if one.state == "open"]
            assert still_open

            server.kill()
            with pytest.raises(Unavailable):
                await client.send_message(still_open[0], "are you there")
            assert not await client.ready()
            assert [replica.state for replica in (await operator.adapters()).replicas] == ["down"]
            # Nothing of the refused message is kept, nothing that was acknowledged is lost.
            assert await client.get_conversation(still_open[0]) == before[still_open[0]]

            server.start().wait()
            await client.wait_until_ready(60)
            for place in still_open:
                await client.send_message(place, "hello again")
                after = await client.get_conversation(place)
                assert after.adapter == "agent@1"
                assert after.turns[: len(before[place].turns)] == before[place].turns
                assert len(after.turns) > len(before[place].turns)


def test_a_server_that_is_configured_and_absent_is_said_and_ends_the_command(tmp_path: Path) -> None:
    config = configure(tmp_path, f"http://127.0.0.1:{free_port(8890)}")
    command = [sys.executable, "-m", "sparring.cli", "serve", "--port", "0", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2
    assert "no vLLM server can be used" in ended.stderr
    assert "Start vLLM there" in ended.stderr
