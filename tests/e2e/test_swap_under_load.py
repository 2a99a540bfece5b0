"""A new champion takes over while customers keep talking: no request fails, no conversation changes its version."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from negotiation.adapter import AdapterName
from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from pipelines.registry import CHAMPION
from serving.auth import KeyStore
from serving.client import SparringClient
from sparring.compose import base_reference, open_registry
from sparring.demo.customers import Customers, Stream
from sparring.demo.processes import Children, free_port
from sparring.models import resolve_base_model
from sparring.settings import Settings, load_settings
from training.artifacts import initialise_adapter
from training.counterparts import negotiators

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FIRST_PORT = 8790


def configure(folder: Path, model: Path) -> Path:
    path = folder / "sparring.toml"
    path.write_text(
        f'base_model = "{model}"\nstate_dir = "{folder / "var"}"\n'
        "[serving]\nreconcile_seconds = 0.5\nmax_tokens = 16\n[training.adapter]\nrank = 2\nalpha = 4\n"
    )
    return path


def register_another(settings: Settings, folder: Path) -> int:
    """Version 2 of both roles."""
    model = resolve_base_model(settings.base_model)
    registry = open_registry(settings, model)
    run = registry.start_run("another")
    version = registry.reserve(run)
    for role in Role:
        name, directory = AdapterName(role=role, version=version), folder / f"{role}@{version}"
        initialise_adapter(base_reference(model), name, settings.training.adapter, 7, directory)
        registry.register(role, directory, run, {})
    return version


async def test_no_request_fails_while_versions_change(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = configure(tmp_path, tiny_model_dir)
    settings = load_settings(config)
    version = register_another(settings, tmp_path)
    registry = open_registry(settings, resolve_base_model(settings.base_model))
    keys = KeyStore(settings.serving.keys_path)
    tenant, admin = keys.create_key("acme"), keys.create_key("acme", "admin")
    port = free_port(FIRST_PORT)
    command = [sys.executable, "-m", "sparring.cli", "serve", "--port", str(port), "--config", str(config)]
    url = f"http://127.0.0.1:{port}"
    customers = Customers(scenario_named("telesales"), negotiators("telesales", Role.COUNTERPART, "train"), 0)
    with Children(tmp_path / "var", {"HF_HUB_OFFLINE": "1"}) as children:
        service = children.start("service", command)
        async with (
            SparringClient(url, tenant, retries=0) as client,
            SparringClient(url, admin) as operator,
        ):
            while not await client.ready():
                service.check()
                await asyncio.sleep(0.2)
            stream = Stream(client, customers, at_once=8, pause_seconds=0.0)
            for champion, before in ((version, 1), (1, version), (version, 1)):
                calls = len(stream.tally.calls)
                while len(stream.tally.calls) < calls + 10:
                    stream.check()
                    await asyncio.sleep(0.1)
                registry.promote(Role.AGENT, champion, expected=before)
                while (await operator.adapters()).current != f"agent@{champion}":
                    stream.check()
                    await asyncio.sleep(0.1)
            calls = len(stream.tally.calls)
            while len(stream.tally.calls) < calls + 10:
                stream.check()
                await asyncio.sleep(0.1)
            tally = await stream.stop()
            shown = await operator.adapters()
    assert tally.failures == 0, tally.errors
    assert set(tally.by_adapter()) == {"agent@1", f"agent@{version}"}
    assert registry.version(Role.AGENT, CHAMPION) == version
    assert shown.current == f"agent@{version}"
    assert shown.failed == {}
