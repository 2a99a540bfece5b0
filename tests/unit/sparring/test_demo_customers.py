"""Simulated customers talk to the real application, and agree with it on how each call ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from negotiation.adapter import AdapterName
from negotiation.catalogue import scenario_named
from negotiation.event_log import Record
from negotiation.events import Opened, OutcomeReported
from negotiation.roles import Role
from pipelines.event_log import SqliteEventLog
from serving.app import create_app
from serving.auth import KeyStore
from serving.client import SparringClient
from serving.config import ServingSettings
from serving.engines.in_process import InProcessEngine
from serving.slots import AdapterSlots
from sparring.compose import base_reference
from sparring.demo.customers import Customers, Stream, Tally, crowd
from sparring.models import resolve_base_model
from training.artifacts import initialise_adapter
from training.config import AdapterSettings
from training.counterparts import negotiators

CUSTOMERS = negotiators("telesales", Role.COUNTERPART, "train")


@dataclass
class Champion:
    name: str
    directory: Path

    def fetch(self) -> Path:
        return self.directory


@dataclass
class Source:
    """A registry of one adapter."""

    adapter: Champion

    def champion(self, role: Role) -> Champion:
        return self.adapter


@dataclass
class Running:
    client: SparringClient
    event_log: SqliteEventLog


@pytest.fixture
async def running(tiny_model_dir: Path, tmp_path: Path) -> AsyncIterator[Running]:
    model = resolve_base_model(str(tiny_model_dir))
    directory = tmp_path / "agent@1"
    initialise_adapter(
        base_reference(model), AdapterName.parse("agent@1"), AdapterSettings(rank=2, alpha=4), 0, directory
    )
    settings = ServingSettings(state_dir=tmp_path / "var", max_tokens=12)
    key = KeyStore(settings.keys_path).create_key("demo")
    event_log = SqliteEventLog(tmp_path / "events.db")
    engine = InProcessEngine(model.path, model.sha256, max_adapters=2, max_batch=8, threads=1, seed=0)
    app = create_app(settings, engine, AdapterSlots(Role.AGENT), event_log, Source(Champion("agent@1", directory)))
    async with (
        app.router.lifespan_context(app),
        SparringClient("http://demo", key, transport=httpx.ASGITransport(app)) as client,
    ):
        await client.wait_until_ready(30)
        yield Running(client, event_log)
    engine.close()
    event_log.close()


async def published(running: Running, calls: int) -> list[Record]:
    """The log, once the outcome of each call is in it: events are published in the background."""
    while True:
        records = running.event_log.poll("test", 1000)
        if sum(isinstance(record.event.payload, OutcomeReported) for record in records) >= calls:
            return records
        await asyncio.sleep(0.01)


async def test_each_call_is_finished_and_its_outcome_reported_with_the_customers_side(running: Running) -> None:
    seen: list[int] = []
    customers = Customers(scenario_named("telesales"), CUSTOMERS, first_seed=5)
    tally = await crowd(running.client, customers, 6, 3, lambda tally, done: seen.append(done))
    assert (len(tally.calls), tally.failures, seen) == (6, 0, [1, 2, 3, 4, 5, 6])
    assert tally.by_adapter() == {"agent@1": 6}
    assert customers.next_seed == 11
    payloads = [record.event.payload for record in await published(running, 6)]
    opened = [payload for payload in payloads if isinstance(payload, Opened)]
    outcomes = [payload for payload in payloads if isinstance(payload, OutcomeReported)]
    assert len(opened) == len(outcomes) == 6
    assert all(payload.source == "simulated" and Role.COUNTERPART not in payload.context.views for payload in opened)
    assert all(payload.counterpart_view for payload in outcomes)


async def test_a_stream_finishes_the_calls_that_it_began(running: Running) -> None:
    stream = Stream(running.client, Customers(scenario_named("telesales"), CUSTOMERS, 0), 2, pause_seconds=0.0)
    tally = await stream.stop()
    assert tally.failures == 0
    assert all(call.turns > 0 for call in tally.calls)


async def test_a_refused_request_is_counted_and_not_hidden() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(503, json={"error": {}}))
    async with SparringClient("http://demo", "key", retries=0, transport=transport) as client:
        tally: Tally = await crowd(
            client, Customers(scenario_named("telesales"), CUSTOMERS, 0), 3, 3, lambda tally, done: None
        )
    assert (tally.requests, tally.failures, len(tally.calls)) == (3, 3, 0)
