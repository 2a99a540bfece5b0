"""Clients that hang up in the middle of a streamed reply, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from transformers import AutoTokenizer

from negotiation.catalogue import scenario_named
from negotiation.generation import GenerationChunk, GenerationRequest
from negotiation.roles import Role
from serving.server import bind
from tests.unit.serving.conftest import Shop, build_shop

pytestmark = pytest.mark.service

FLOORS = scenario_named("telesales").generate(1).views[Role.AGENT]["floors"]
VEHICLE = next(iter(FLOORS))
PRICE = FLOORS[VEHICLE] // 100 + 250
REPLY = f"Good day. What do you need? I have the {VEHICLE} {PRICE} here. [offer {VEHICLE} {PRICE}]"
SAID = {"text": "Hello.", "stream": True}


@pytest.fixture
async def shop(tmp_path: Path, tiny_model_dir: Path) -> AsyncIterator[Shop]:
    """A service on a port of its own, and a client that really connects."""
    shop = build_shop(tmp_path, AutoTokenizer.from_pretrained(tiny_model_dir))
    shop.engine.say = lambda request: REPLY
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(shop.app, log_config=None, lifespan="on"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    await shop.app.state.service.reconcile()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, headers=shop.headers("acme"), trust_env=False) as client:
        shop.client = client
        yield shop
    server.should_exit = True
    await serving


async def retried(shop: Shop, path: str, headers: dict[str, str]) -> Any:
    """The answer to the same message once the step that ran is over."""
    while (response := await shop.client.post(path, json={"text": "Hello."}, headers=headers)).status_code == 409:
        await asyncio.sleep(0.05)
    assert response.status_code == 200, response.text
    return response.json()


async def test_before_anything_was_shown_nothing_is_left(shop: Shop):
    opened = await shop.open(first=Role.COUNTERPART)
    path, headers = f"/v1/conversations/{opened['id']}/messages", {"Idempotency-Key": "k"}
    shop.engine.gate.clear()
    asking = asyncio.create_task(shop.client.post(path, json=SAID, headers=headers))
    while not shop.engine.requests:
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait({asking})
    conversations = shop.app.state.service.conversations
    while conversations._busy:  # the brake is still on: only the hang-up can end the step
        await asyncio.sleep(0.01)
    shop.engine.gate.set()
    assert len(await shop.logged(opened["id"])) == 1
    assert (await retried(shop, path, headers))["reply"]["text"] == REPLY
    assert len(shop.engine.requests) == 2


async def test_what_was_shown_is_finished_and_a_retry_gets_the_rest(shop: Shop):
    go_on, whole = asyncio.Event(), shop.engine.stream

    async def slow(request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        said: list[int] = []
        async for chunk in whole(request):
            yield chunk
            said += chunk.token_ids
            if shop.engine.tokenizer.decode(said).endswith("need? I"):
                await go_on.wait()

    shop.engine.stream = slow  # type: ignore[method-assign]
    opened = await shop.open(first=Role.COUNTERPART)
    path, headers = f"/v1/conversations/{opened['id']}/messages", {"Idempotency-Key": "k"}
    async with shop.client.stream("POST", path, json=SAID, headers=headers) as response:
        assert await anext(response.aiter_lines()) == 'data: {"delta": "Good day."}'
    busy = await shop.client.post(path, json={"text": "Hello."}, headers=headers)
    assert (busy.status_code, busy.headers["retry-after"]) == (409, "1")
    go_on.set()
    assert (await retried(shop, path, headers))["reply"]["text"] == REPLY
    assert len(shop.engine.requests) == 1
    assert [event.sequence for event in await shop.logged(opened["id"])] == [0, 1, 2, 3]
