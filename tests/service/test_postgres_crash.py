"""``kill -9`` of Postgres in mid-conversation: what was acknowledged is there, nothing twice, and talk goes on.

Starts a Postgres server of its own; wants its programs (Debian: ``apt install postgresql``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from negotiation.roles import Role
from tests.service.postgres_server import NoPostgresPrograms, PostgresServer, own_postgres

pytestmark = pytest.mark.service

CONVERSATIONS, MESSAGES = 8, 4


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    try:
        with own_postgres() as server:
            yield server
    except NoPostgresPrograms as error:
        pytest.skip(str(error))


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
async def test_acknowledged_turns_survive_kill_nine_of_postgres(make_shop: Any, server: PostgresServer) -> None:
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
