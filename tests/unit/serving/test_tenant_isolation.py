"""The key says who asks, and nothing else does: what is another tenant's looks as if it did not exist."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from negotiation.roles import Role

REQUESTS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("POST", "/messages", {"text": "Hello"}),
    ("POST", "/messages", {"text": "Hello", "stream": True}),
    ("GET", "/approval", None),
    ("POST", "/approval", {"approved": True}),
    ("POST", "/outcome", {"agreed": False}),
    ("POST", "/score", None),
    ("POST", "/outcome", {"agreed": False, "counterpart_view": {"budget": 1}}),
]


def told(response: httpx.Response, identity: str) -> tuple[int, str]:
    """Status and body, without the id that the caller itself named."""
    return response.status_code, response.text.replace(identity, "ID")


async def ask(shop, identity: str, method: str, suffix: str, body: Any, **headers: str) -> httpx.Response:
    path = f"/v1/conversations/{identity}{suffix}"
    who = "rival's boss" if suffix == "/approval" else "rival"
    return await shop.client.request(method, path, json=body, headers=shop.headers(who, **headers))


def test_every_endpoint_with_an_id_is_listed(shop):
    paths = shop.app.openapi()["paths"]
    asked = {("/v1/conversations/{conversation_id}" + suffix, method.lower()) for method, suffix, _ in REQUESTS}
    with_id = {(path, method) for path in paths if "{conversation_id}" in path for method in paths[path]}
    assert asked == with_id


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k-1"}])
@pytest.mark.parametrize(("method", "suffix", "body"), REQUESTS)
async def test_a_foreign_id_is_as_unknown_as_any(shop, method, suffix, body, key):
    mine = (await shop.client.post("/v1/conversations", json=shop.opening(), headers=key)).json()["id"]
    foreign = await ask(shop, mine, method, suffix, body, **key)
    unknown = await ask(shop, "conv_0", method, suffix, body, **key)
    assert told(foreign, mine) == told(unknown, "conv_0")
    assert foreign.status_code == 404
    assert (await shop.client.get(f"/v1/conversations/{mine}")).json()["state"] == "open"


@pytest.mark.parametrize(("method", "suffix", "body"), REQUESTS)
async def test_not_even_while_it_is_busy(shop, method, suffix, body):
    mine = (await shop.open(first=Role.COUNTERPART))["id"]
    shop.engine.gate.clear()
    saying = asyncio.create_task(shop.say(mine, "Hello"))
    while not shop.engine.requests:
        await asyncio.sleep(0)
    foreign = await ask(shop, mine, method, suffix, body)
    assert told(foreign, mine) == told(await ask(shop, "conv_0", method, suffix, body), "conv_0")
    shop.engine.gate.set()
    assert (await saying).status_code == 200


async def test_a_foreigner_asking_all_the_time_is_not_in_the_way(shop):
    mine = await shop.open(first=Role.COUNTERPART)
    stop = asyncio.Event()

    async def pester() -> None:
        while not stop.is_set():
            assert (await ask(shop, mine["id"], "POST", "/messages", {"text": "Hi"})).status_code == 404

    pestering = asyncio.create_task(pester())
    for number in range(3):
        assert (await shop.say(mine["id"], f"Message {number}")).status_code == 200
    stop.set()
    await pestering


async def test_no_other_tenant_can_be_named(shop):
    mine = (await shop.open())["id"]
    for name in ("x-tenant", "x-tenant-id", "tenant", "x-forwarded-user"):
        assert (await ask(shop, mine, "GET", "", None, **{name: "acme"})).status_code == 404
    response = await shop.client.get(f"/v1/conversations/{mine}?tenant=acme", headers=shop.headers("rival"))
    assert response.status_code == 404


async def test_of_many_messages_at_once_one_is_taken(shop):
    mine = (await shop.open(first=Role.COUNTERPART))["id"]
    shop.engine.gate.clear()
    saying = [asyncio.create_task(shop.say(mine, f"Message {number}")) for number in range(8)]
    while sum(task.done() for task in saying) < 7:
        await asyncio.sleep(0)
    shop.engine.gate.set()
    answers = await asyncio.gather(*saying)
    assert sorted(answer.status_code for answer in answers) == [200, *[409] * 7]
    refused = [answer for answer in answers if answer.status_code == 409]
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    assert {answer.json()["error"]["code"] for answer in refused} == {"conversation_busy"}
    events = await shop.logged(mine)
    assert [event.sequence for event in events] == [0, 1, 2]
    taken = next(number for number, answer in enumerate(answers) if answer.status_code == 200)
    assert events[1].payload.text == f"Message {taken}"
    turns = (await shop.client.get(f"/v1/conversations/{mine}")).json()["turns"]
    assert [turn["role"] for turn in turns] == ["counterpart", "agent"]


@pytest.mark.parametrize("endpoint", ["open", "messages", "outcome"])
async def test_a_key_on_every_post(shop, endpoint):
    """Same again: the same answer, done once. Another body: 422. While it runs: 409."""
    mine = (await shop.open(first=Role.COUNTERPART))["id"]
    path, body, other = {
        "open": ("/v1/conversations", shop.opening(4), shop.opening(5)),
        "messages": (f"/v1/conversations/{mine}/messages", {"text": "Hello"}, {"text": "Hi"}),
        "outcome": (f"/v1/conversations/{mine}/outcome", {"agreed": False}, {"agreed": True}),
    }[endpoint]
    if endpoint == "outcome":
        assert (await shop.say(mine, "[quit]")).status_code == 200
    headers = {"Idempotency-Key": "k"}

    async def post(content: dict[str, Any]) -> httpx.Response:
        return await shop.client.post(path, json=content, headers=headers)

    if endpoint != "outcome":
        shop.engine.gate.clear()
        running = asyncio.create_task(post(body))
        while not shop.engine.requests:
            await asyncio.sleep(0)
        busy = await post(body)
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "request_in_flight")
        assert busy.headers["retry-after"] == "1"
        shop.engine.gate.set()
        first = await running
    else:
        first = await post(body)
    count = len(await shop.logged())
    again = await post(body)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert len(await shop.logged()) == count
    refused = await post(other)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
