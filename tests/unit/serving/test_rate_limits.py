"""What one key may ask for, guesses at keys, and the sizes of requests."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from serving.auth import KeyStore
from serving.client import RateLimited, SparringClient


class Clock:
    """Stands still until it is moved, so that no test meets the edge of a window by chance."""

    now = 1_900_000_010.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    standing = Clock()
    monkeypatch.setattr(time, "time", standing)
    return standing


async def test_requests_of_a_key_are_counted_down_and_then_refused(make_shop):
    async with make_shop(requests_per_minute=3) as shop:
        path = "/v1/conversations/conv_0"
        remaining = []
        for _ in range(3):
            response = await shop.client.get(path)
            assert response.status_code == 404
            assert response.headers["x-ratelimit-limit-requests"] == "3"
            remaining.append(response.headers["x-ratelimit-remaining-requests"])
        assert remaining == ["2", "1", "0"]
        refused = await shop.client.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.headers["x-ratelimit-reset-requests"] == refused.headers["retry-after"] + "s"
        rival = await shop.client.get(path, headers=shop.headers("rival"))
        assert rival.headers["x-ratelimit-remaining-requests"] == "2", "keys are counted apart"
        assert (await shop.client.get("/readyz")).status_code == 200, "health is not limited"


async def test_the_window_moves_on(make_shop, clock):
    async with make_shop(requests_per_minute=1) as shop:
        assert (await shop.client.get("/v1/models")).status_code == 200
        refused = await shop.client.get("/v1/models")
        assert refused.status_code == 429
        clock.now += int(refused.headers["retry-after"]) + 1
        assert (await shop.client.get("/v1/models")).status_code == 200


async def test_a_keys_own_limits_win(make_shop):
    async with make_shop(requests_per_minute=1, concurrent_requests=1) as shop:
        store = KeyStore(shop.settings.keys_path)
        wide = {"Authorization": f"Bearer {store.create_key('acme', requests_per_minute=0, concurrent_requests=0)}"}
        narrow = {"Authorization": f"Bearer {store.create_key('acme', requests_per_minute=2)}"}
        for _ in range(5):
            response = await shop.client.get("/v1/models", headers=wide)
            assert response.status_code == 200
            assert "x-ratelimit-limit-requests" not in response.headers
        statuses = [(await shop.client.get("/v1/models", headers=narrow)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]


async def test_requests_at_once_are_limited_until_one_ends(make_shop):
    async with make_shop(concurrent_requests=2) as shop:
        shop.engine.gate.clear()
        running = [asyncio.create_task(shop.open(seed)) for seed in (1, 2)]
        while len(shop.engine.requests) < 2:
            await asyncio.sleep(0)
        refused = await shop.client.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_concurrent_requests")
        assert refused.headers["retry-after"] == "1"
        assert (await shop.client.get("/v1/models", headers=shop.headers("rival"))).status_code == 200
        shop.engine.gate.set()
        await asyncio.gather(*running)
        assert (await shop.client.get("/v1/models")).status_code == 200


async def test_guesses_are_limited_by_address_and_lock_nobody_out(make_shop):
    async with make_shop(failed_keys_per_minute=3) as shop:
        wrong = {"Authorization": "Bearer sk-tenant-guess"}
        codes = [(await shop.client.get("/v1/models", headers=wrong)).status_code for _ in range(4)]
        assert codes == [401, 401, 401, 429]
        spoofed = await shop.client.get("/v1/models", headers={**wrong, "X-Forwarded-For": "192.0.2.7"})
        assert (spoofed.status_code, spoofed.json()["error"]["code"]) == (429, "too_many_failed_keys")
        assert int(spoofed.headers["retry-after"]) >= 1
        assert (await shop.client.get("/v1/models")).status_code == 200
        transport = httpx.ASGITransport(shop.app, client=("192.0.2.8", 4))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=wrong) as elsewhere:
            assert (await elsewhere.get("/v1/models")).status_code == 401


async def test_our_client_waits_as_told_but_not_for_longer_than_a_try(make_shop, monkeypatch):
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    answers = [
        httpx.Response(429, headers={"Retry-After": "7"}),
        httpx.Response(200, json={"current": None, "loaded": [], "pinned": {}}),
    ]
    transport = httpx.MockTransport(lambda request: answers.pop(0))
    async with SparringClient("http://shop", "k", transport=transport, timeout_seconds=10) as client:
        monkeypatch.setattr("serving.client.asyncio.sleep", sleep)
        assert (await client.adapters()).current is None
        assert len(waited) == 1
        assert waited[0] >= 7
        answers.append(httpx.Response(429, headers={"Retry-After": "11"}))
        with pytest.raises(RateLimited):
            await client.adapters()


async def test_request_ids_are_echoed_or_made_on_every_answer(shop):
    async def identity(given: str | None, path: str = "/v1/models", **options: Any) -> str:
        headers = {} if given is None else {"x-request-id": given}
        return (await shop.client.request("GET", path, headers=headers, **options)).headers["x-request-id"]

    assert await identity("abc-1.2:3_4") == "abc-1.2:3_4"
    for bad in ("", "a b", "x" * 129, "<script>", "a\tb"):
        assert (await identity(bad)).startswith("req_")
    made = {await identity(None) for _ in range(3)}
    assert len(made) == 3
    for path in ("/nowhere", "/readyz", "/v1/conversations/conv_0", "/docs"):
        assert await identity("mine", path) == "mine"
    unknown = await shop.client.get("/v1/models", headers={"Authorization": "Bearer no", "x-request-id": "mine"})
    assert (unknown.status_code, unknown.headers["x-request-id"]) == (401, "mine")
    shop.engine.failure = RuntimeError("boom")
    crashed = await shop.client.post("/v1/conversations", json=shop.opening(), headers={"x-request-id": "mine"})
    assert (crashed.status_code, crashed.headers["x-request-id"]) == (500, "mine")
    assert "x-ratelimit-remaining-requests" in crashed.headers


async def test_log_records_carry_the_request_id(shop, caplog):
    from serving.log_context import LogContext

    caplog.handler.addFilter(LogContext())
    caplog.set_level("INFO")
    await shop.client.post("/v1/conversations", json=shop.opening(), headers={"x-request-id": "mine"})
    steps = [record for record in caplog.records if record.message == "step"]
    assert [record.request_id for record in steps] == ["mine"]


async def test_too_many_headers_are_431(shop):
    headers = {f"x-h{number}": "v" for number in range(64)}
    response = await shop.client.get("/v1/models", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (431, "too_many_headers")
    assert "64" in response.json()["error"]["message"]
    assert response.headers["x-request-id"]


async def test_the_body_limit_holds_for_completions(shop):
    body = {"model": "sparring-agent", "messages": [{"role": "user", "content": "x" * 70_000}]}
    response = await shop.client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "content_too_large")
