"""``kill -9`` in the middle of 100 conversations: acknowledged means logged exactly once, and talk goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from negotiation.catalogue import scenario_named
from negotiation.events import ConversationEvent, Message
from negotiation.roles import Role
from pipelines.event_log import SqliteEventLog
from serving.auth import KeyStore
from serving.client import SparringClient, SparringError

pytestmark = pytest.mark.service

CONVERSATIONS = 100
MESSAGES = 5
KILLS_AFTER = (130, 320)
"""Acknowledged requests after which the service is killed, counted over all conversations."""

SCENARIO = scenario_named("telesales")


@dataclass
class Customer:
    """One conversation as its customer knows it."""

    number: int
    id: str | None = None
    adapter: str | None = None
    heard: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    waiting: str | None = None

    @property
    def retries(self) -> bool:
        """Every third customer does not send again what was never acknowledged, but says something else."""
        return self.number % 3 != 0


@contextmanager
def service(state_dir: Path, model_dir: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    script = Path(__file__).with_name("crash_service.py")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    errors = (state_dir / "service.log").open("a")
    process = subprocess.Popen(
        [sys.executable, str(script), str(state_dir), str(model_dir), *options],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, (state_dir / "service.log").read_text()[-3000:]
        yield process, url
    finally:
        process.kill()
        process.wait()
        errors.close()


class Crash:
    """Kills the service once enough was acknowledged."""

    def __init__(self, process: subprocess.Popen[str], after: int | None) -> None:
        self.process, self.after = process, after

    def acknowledged(self, customers: list[Customer]) -> None:
        count = sum(len(customer.said) + bool(customer.id) for customer in customers)
        if self.after is not None and count >= self.after:
            self.after = None
            self.process.kill()


async def talk(client: SparringClient, customer: Customer, customers: list[Customer], crash: Crash) -> None:
    """Go on until done or until the service is gone."""
    if customer.id is None:
        context = SCENARIO.generate(customer.number)
        opened = await client.open_conversation(context, idempotency_key=f"open-{customer.number}")
        customer.id, customer.adapter = opened.id, opened.adapter
        if opened.message is not None:
            customer.heard.append(opened.message.text)
        crash.acknowledged(customers)
    while len(customer.said) < MESSAGES:
        if customer.waiting is not None and not customer.retries:
            customer.waiting = None
        attempt = customer.waiting or f"message {len(customer.said)} of {customer.number} pid {crash.process.pid}"
        customer.waiting = attempt
        answer = await client.send_message(customer.id, attempt, idempotency_key=f"{customer.number}:{attempt}")
        customer.said.append(attempt)
        customer.waiting = None
        if answer.reply is not None:
            customer.heard.append(answer.reply.text)
        if answer.state == "closed":
            break
        crash.acknowledged(customers)


async def run(url: str, key: str, customers: list[Customer], crash: Crash) -> int:
    """All conversations at once; returns how many were cut off."""
    async with SparringClient(url, key, retries=0) as client:
        await client.wait_until_ready(60)
        results = await asyncio.gather(
            *(talk(client, customer, customers, crash) for customer in customers), return_exceptions=True
        )
    unexpected = [r for r in results if isinstance(r, BaseException) and not isinstance(r, SparringError)]
    assert not unexpected, unexpected[0]
    return sum(isinstance(result, SparringError) for result in results)


def read_log(path: Path) -> list[ConversationEvent]:
    log = SqliteEventLog(path)
    events = [record.event for record in log.poll("test", 100_000)]
    log.close()
    return events


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kept_in", ["sqlite", "postgres"])
def test_acknowledged_messages_survive_kill_nine_exactly_once(
    tmp_path: Path, tiny_model_dir: Path, kept_in: str, request: pytest.FixtureRequest
) -> None:
    options = (request.getfixturevalue("database").url,) if kept_in == "postgres" else ()
    key = KeyStore(tmp_path / "keys.json").create_key("acme")
    customers = [Customer(number) for number in range(CONVERSATIONS)]
    cut_off = []
    for after in (*KILLS_AFTER, None):
        with service(tmp_path, tiny_model_dir, *options) as (process, url):
            cut_off.append(asyncio.run(run(url, key, customers, Crash(process, after))))
            if after is not None:
                assert process.wait(10) == -9
            else:
                asyncio.run(compare(url, key, customers, read_log(tmp_path / "events.db")))
                process.terminate()
                assert process.wait(30) == 0, "SIGTERM ends the service cleanly"
    assert cut_off[0] > CONVERSATIONS // 2, "the kill came in the middle"
    assert cut_off[1] > 0
    assert cut_off[2] == 0, (tmp_path / "service.log").read_text()[-3000:]


async def compare(url: str, key: str, customers: list[Customer], events: list[ConversationEvent]) -> None:
    assert len({event.event_id for event in events}) == len(events)
    async with SparringClient(url, key) as client:
        for customer in customers:
            own = [event for event in events if event.conversation_id == customer.id]
            assert [event.sequence for event in own] == list(range(len(own))), "no gap, no repeat, in order"
            messages = [event.payload for event in own if isinstance(event.payload, Message)]
            heard = Counter(message.text for message in messages if message.role is Role.COUNTERPART)
            for said in customer.said:
                assert heard[said] == 1, "acknowledged, hence logged exactly once"
            assert max(heard.values()) == 1, "and nothing twice"
            if customer.retries:
                assert list(heard) == customer.said
                shown = [message.shown for message in messages if message.role is Role.AGENT]
                assert shown == customer.heard, "each reply once, and the one that the customer got"
            conversation = await client.get_conversation(str(customer.id))
            assert conversation.adapter == customer.adapter
            assert [turn.text for turn in conversation.turns] == [message.shown for message in messages]
    assert len({event.conversation_id for event in events}) == CONVERSATIONS
