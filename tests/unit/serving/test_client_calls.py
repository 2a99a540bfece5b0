"""The client against the real application, and what it does about lost answers."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from serving.client import Conflict, NotFound, RequestRefused, SparringClient, TooLong, Unauthorized, Unreachable

SCENARIO = scenario_named("telesales")


def client_of(shop, who: str = "acme", **options) -> SparringClient:
    transport = options.pop("transport", None) or httpx.ASGITransport(shop.app, raise_app_exceptions=False)
    return SparringClient("http://shop", shop.keys[who], transport=transport, **options)


async def test_a_whole_conversation(shop):
    context = SCENARIO.generate(3)
    vehicle, floor = next(iter(context.views[Role.AGENT]["floors"].items()))
    shop.engine.say = lambda request: f"This one. [offer {vehicle} {floor // 100 + 250}]"
    async with client_of(shop) as client:
        assert await client.ready()
        opened = await client.open_conversation(context, simulated=True, labels={"seed": "3"})
        if opened.message is None:
            await client.send_message(opened.id, "I need a car.")
        answer = await client.send_message(opened.id, "Agreed. [accept]")
        assert (answer.state, answer.reason, answer.reply) == ("closed", "agreed", None)
        state = SCENARIO.begin(context)
        shown = await client.get_conversation(opened.id)
        for turn in shown.turns:
            state = SCENARIO.advance(context, state, turn.role, turn.text)
        outcome = SCENARIO.outcome(context, state)
        await client.report_outcome(opened.id, outcome, counterpart_view=context.views[Role.COUNTERPART])
    last = (await shop.logged(opened.id))[-1].payload
    assert last.rewards == outcome.rewards
    assert str(context.views[Role.COUNTERPART]["budget"]) not in str((await shop.logged(opened.id))[:-1])


async def test_errors_have_types(shop):
    async with client_of(shop) as client:
        opened = await client.open_conversation(SCENARIO.generate(3))
        with pytest.raises(NotFound, match="conversation_not_found"):
            await client.get_conversation("conv_0")
        with pytest.raises(TooLong) as caught:
            await client.send_message(opened.id, "x" * 5000)
        assert (caught.value.status, caught.value.code, caught.value.param) == (413, "message_too_long", "text")
        await client.send_message(opened.id, "[quit]")
        with pytest.raises(Conflict, match="conversation_closed"):
            await client.send_message(opened.id, "Hello?")
        with pytest.raises(Unauthorized):
            await client.adapters()
        with pytest.raises(RequestRefused) as refused:
            await client.open_conversation(SCENARIO.generate(3).model_copy(update={"scenario": "chess"}))
        assert refused.value.status == 422
    async with client_of(shop, "root") as admin:
        assert (await admin.adapters()).current == "agent@1"
        assert (await admin.reconcile()).current == "agent@1"


class LosesAnswers(httpx.AsyncBaseTransport):
    """Does the request, then breaks the connection, every other time."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self.inner, self.calls = inner, 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        response = await self.inner.handle_async_request(request)
        if self.calls % 2:
            raise httpx.ReadError("connection lost", request=request)
        return response


async def test_a_lost_answer_is_fetched_not_repeated(shop):
    transport = LosesAnswers(httpx.ASGITransport(shop.app, raise_app_exceptions=False))
    async with client_of(shop, transport=transport) as client:
        opened = await client.open_conversation(SCENARIO.generate(3))
        for text in ("One", "Two", "Three"):
            await client.send_message(opened.id, text)
    said = [e.payload.text for e in await shop.logged(opened.id) if e.payload.type == "message"]
    assert [text for text in said if text != "Good day."] == ["One", "Two", "Three"]
    assert len({e.conversation_id for e in await shop.logged()}) == 1
    assert transport.calls == 8


async def test_nothing_there_is_unreachable(unused_tcp_port):
    async with SparringClient(f"http://127.0.0.1:{unused_tcp_port}", "sk-x", retries=0) as client:
        assert not await client.ready()
        with pytest.raises(Unreachable, match=str(unused_tcp_port)):
            await client.get_conversation("conv_0")
        with pytest.raises(Unreachable, match="not ready within"):
            await client.wait_until_ready(0.01)


def test_the_client_needs_neither_torch_nor_fastapi():
    script = (
        "import sys; import serving.client; "
        "sys.exit(', '.join(sorted({'torch', 'fastapi', 'langgraph', 'transformers'} & set(sys.modules))) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
