"""Replies in parts: what goes out early, what waits, and what a client that goes away leaves behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from negotiation.authority import SAFE_REPLY
from negotiation.catalogue import scenario_named
from negotiation.events import Guarded, Message
from negotiation.generation import AdapterNotLoaded, GenerationChunk, GenerationRequest
from negotiation.roles import Role
from serving.schemas import MessageAnswered, SendMessage

CONTEXT = scenario_named("telesales").generate(1)
FLOORS = CONTEXT.views[Role.AGENT]["floors"]
VEHICLE = next(iter(FLOORS))
FAIR = FLOORS[VEHICLE] // 100 + 250
GREETING = "Good day. What do you need?"
OFFER = f"I have the {VEHICLE} {FAIR} here. [offer {VEHICLE} {FAIR}]"
BAD = f"The {VEHICLE} is yours for 1."


async def streamed(shop: Any, conversation: str, text: str = "Hello.", key: str | None = None) -> list[Any]:
    """The events of a streamed reply: deltas as text, then the answer, then the mark of the end."""
    headers = {} if key is None else {"Idempotency-Key": key}
    path = f"/v1/conversations/{conversation}/messages"
    response = await shop.client.post(path, json={"text": text, "stream": True}, headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events: list[Any] = []
    for block in response.text.strip().split("\n\n"):
        data = block.split("data: ", 1)[1]
        event = data if data == "[DONE]" else json.loads(data)
        events.append(event.get("delta", event) if isinstance(event, dict) else event)
    return events


async def kept(shop: Any, conversation: str) -> Any:
    return await shop.app.state.service.conversations._checkpoints.read(conversation)


async def last_message(shop: Any, conversation: str) -> Message:
    return [e.payload for e in await shop.logged(conversation) if isinstance(e.payload, Message)][-1]


async def test_the_parts_are_the_reply_and_the_answer_comes_before_the_end(shop):
    shop.engine.say = lambda request: f"{GREETING} {OFFER}"
    opened = await shop.open(first=Role.COUNTERPART)
    *deltas, answer, done = await streamed(shop, opened["id"])
    assert done == "[DONE]"
    assert deltas[:2] == ["Good day.", " What do you need?"]
    assert "".join(deltas) == answer["reply"]["text"] == f"{GREETING} {OFFER}"
    assert MessageAnswered.model_validate(answer).reply is not None
    assert (await last_message(shop, opened["id"])).guarded is None


async def test_what_may_go_out_does_so_before_the_rest_is_there(shop):
    shop.engine.say = lambda request: f"{GREETING} {OFFER}"
    opened = await shop.open(first=Role.COUNTERPART)
    until, go_on, waited = f"{GREETING} I", asyncio.Event(), asyncio.Event()
    whole = shop.engine.stream

    async def slow(request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        said: list[int] = []
        async for chunk in whole(request):
            yield chunk
            said += chunk.token_ids
            if shop.engine.tokenizer.decode(said).strip() == until:
                waited.set()
                await go_on.wait()

    shop.engine.stream = slow
    conversations = shop.app.state.service.conversations
    parts = conversations.message_stream("acme", opened["id"], SendMessage(text="Hello."), None)
    assert [await anext(parts), await anext(parts)] == ["Good day.", " What do you need?"]
    await waited.wait()
    go_on.set()
    rest = [part async for part in parts]
    assert rest[0] == f" {OFFER}"


async def test_a_second_try_goes_on_from_what_was_shown(shop):
    asked: list[GenerationRequest] = []

    def say(request: GenerationRequest) -> str:
        asked.append(request)
        return f"{GREETING} {BAD}" if len(asked) == 1 else f" {OFFER}"

    shop.engine.say = say
    opened = await shop.open(first=Role.COUNTERPART)
    *deltas, answer, _ = await streamed(shop, opened["id"])
    assert "".join(deltas) == answer["reply"]["text"] == f"{GREETING} {OFFER}"
    first, second = asked
    decode = shop.engine.tokenizer.decode
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert decode(list(second.prompt_ids[len(first.prompt_ids) :])).strip() == GREETING
    assert second.sampling.max_tokens < first.sampling.max_tokens
    message = await last_message(shop, opened["id"])
    assert message.guarded is Guarded.REGENERATED
    record = await kept(shop, opened["id"])
    ours = [token for token, own in zip(record.ids, record.sampled, strict=True) if own]
    assert decode(ours, skip_special_tokens=True).strip() == f"{GREETING} {OFFER}"
    assert {logprob for logprob, own in zip(record.logprobs, record.sampled, strict=True) if own} == {-0.25}
    assert message.completion_tokens > len(ours)
    metrics = (await shop.client.get("/metrics")).text
    assert 'sparring_guarded_replies_total{adapter="agent@1",what="regenerated"} 1.0' in metrics


@pytest.mark.parametrize("stream", [False, True])
async def test_the_safe_reply_is_put_there_and_never_counts_as_sampled(shop, stream):
    shop.engine.say = lambda request: f" {BAD}" if len(shop.engine.requests) == 2 else f"{GREETING} {BAD}"
    opened = await shop.open(first=Role.COUNTERPART)
    if stream:
        *deltas, answer, _ = await streamed(shop, opened["id"])
        assert "".join(deltas) == f"{GREETING} {SAFE_REPLY}"
    else:
        answer = (await shop.say(opened["id"], "Hello.")).json()
    shown = f"{GREETING} {SAFE_REPLY}" if stream else SAFE_REPLY
    assert answer["reply"] == {"text": shown, "move": None}
    message = await last_message(shop, opened["id"])
    assert (message.text, message.shown, message.guarded) == (shown, shown, Guarded.REPLACED)
    record = await kept(shop, opened["id"])
    decode = shop.engine.tokenizer.decode
    ours = [token for token, own in zip(record.ids, record.sampled, strict=True) if own]
    assert decode(ours).strip() == (GREETING if stream else "")
    assert decode(record.ids).endswith(SAFE_REPLY)
    assert all(logprob == 0 for logprob, own in zip(record.logprobs, record.sampled, strict=True) if not own)
    metrics = (await shop.client.get("/metrics")).text
    assert 'sparring_guarded_replies_total{adapter="agent@1",what="replaced"} 1.0' in metrics
    shop.engine.say = lambda request: "Well?"
    assert (await shop.say(opened["id"], "And now?")).json()["reply"]["text"] == "Well?"
    prompt = decode(list(shop.engine.requests[-1].prompt_ids))
    assert SAFE_REPLY in prompt
    assert "yours for 1" not in prompt


async def test_an_offer_beyond_authority_is_hidden_behind_what_was_shown(shop):
    shop.engine.say = lambda request: f"{GREETING} Less? [offer {VEHICLE} 1]"
    opened = await shop.open(first=Role.COUNTERPART)
    *deltas, answer, _ = await streamed(shop, opened["id"])
    assert "".join(deltas) == answer["reply"]["text"] == f"{GREETING} Less? {SAFE_REPLY}"
    assert "[offer" not in str(deltas)


@pytest.mark.parametrize("first_streams", [True, False])
@pytest.mark.parametrize("retry_streams", [True, False])
async def test_a_retry_in_flight_waits_and_then_gets_the_very_answer(shop, first_streams, retry_streams):
    opened = await shop.open(first=Role.COUNTERPART)
    shop.engine.gate.clear()

    async def post(streams: bool) -> Any:
        path, body = f"/v1/conversations/{opened['id']}/messages", {"text": "Hello.", "stream": streams}
        return await shop.client.post(path, json=body, headers={"Idempotency-Key": "m"})

    async def answer_of(streams: bool) -> Any:
        if streams:
            return (await streamed(shop, opened["id"], key="m"))[-2]
        return (await post(False)).json()

    first = asyncio.create_task(answer_of(first_streams))
    while not shop.engine.requests:
        await asyncio.sleep(0)
    for _ in range(2):
        early = await post(retry_streams)
        assert (early.status_code, early.json()["error"]["code"]) == (409, "request_in_flight")
        assert early.headers["retry-after"] == "1"
    shop.engine.gate.set()
    answered = await first
    assert answered["reply"]["text"] == "Good day."
    assert await answer_of(retry_streams) == answered
    assert len(shop.engine.requests) == 1
    shown = (await shop.client.get(f"/v1/conversations/{opened['id']}")).json()
    assert [turn["text"] for turn in shown["turns"]] == ["Hello.", "Good day."]


async def test_a_failure_before_the_first_part_is_an_ordinary_error(shop):
    opened = await shop.open(first=Role.COUNTERPART)
    shop.engine.failure = AdapterNotLoaded("gone")
    path = f"/v1/conversations/{opened['id']}/messages"
    response = await shop.client.post(path, json={"text": "Hello.", "stream": True})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "adapter_not_loaded")
    assert response.headers["retry-after"] == "1"
    blank = await shop.client.post(path, json={"text": " ", "stream": True})
    assert blank.status_code == 422


@pytest.mark.parametrize(
    ("failure", "code"), [(AdapterNotLoaded("gone"), "adapter_not_loaded"), (OSError(), "internal")]
)
async def test_a_failure_after_it_is_an_error_event_and_no_end_mark(shop, failure, code):
    shop.engine.say = lambda request: f"{GREETING} {OFFER}"
    whole = shop.engine.stream

    async def broken(request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        said = 0
        async for chunk in whole(request):
            yield chunk
            said += 1
            if said == 12:
                raise failure

    shop.engine.stream = broken
    opened = await shop.open(first=Role.COUNTERPART)
    path = f"/v1/conversations/{opened['id']}/messages"
    response = await shop.client.post(path, json={"text": "Hello.", "stream": True})
    *_, error = response.text.strip().split("\n\n")
    name, data = error.split("\n")
    assert name == "event: error"
    assert code in json.loads(data.removeprefix("data: "))["error"]["code"]
    assert "[DONE]" not in response.text
    assert len(await shop.logged(opened["id"])) == 1, "the step was not taken"


async def test_a_repeated_key_gets_the_same_reply_streamed_or_not(shop):
    opened = await shop.open(first=Role.COUNTERPART)
    first = await streamed(shop, opened["id"], key="k")
    assert await streamed(shop, opened["id"], key="k") == first
    assert (await shop.say(opened["id"], "Hello.", key="k")).json() == first[-2]
    assert len(shop.engine.requests) == 1


async def test_a_client_that_leaves_before_anything_was_shown_leaves_nothing(shop):
    opened = await shop.open(first=Role.COUNTERPART)
    shop.engine.gate.clear()
    conversations = shop.app.state.service.conversations
    parts = conversations.message_stream("acme", opened["id"], SendMessage(text="Hello."), "k")
    waiting = asyncio.ensure_future(anext(parts))
    while not shop.engine.requests:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    await conversations.drain()
    shop.engine.gate.set()
    assert len(await shop.logged(opened["id"])) == 1
    assert (await shop.say(opened["id"], "Hello.", key="k")).status_code == 200
    assert [event.sequence for event in await shop.logged(opened["id"])] == [0, 1, 2]


async def test_what_was_shown_is_kept_though_the_client_left(shop):
    shop.engine.say = lambda request: f"{GREETING} {OFFER}"
    opened = await shop.open(first=Role.COUNTERPART)
    conversations = shop.app.state.service.conversations
    parts = conversations.message_stream("acme", opened["id"], SendMessage(text="Hello."), "k")
    seen = await anext(parts)
    await parts.aclose()
    await conversations.drain()
    retried = (await shop.say(opened["id"], "Hello.", key="k")).json()
    assert retried["reply"]["text"] == f"{GREETING} {OFFER}"
    assert retried["reply"]["text"].startswith(seen)
    assert len(shop.engine.requests) == 1, "the reply that was shown in part is the one that is kept"
    assert [event.sequence for event in await shop.logged(opened["id"])] == [0, 1, 2, 3]


async def test_a_stop_of_the_service_finishes_what_was_shown(make_shop):
    async with make_shop() as before:
        before.engine.say = lambda request: f"{GREETING} {OFFER}"
        opened = await before.open(first=Role.COUNTERPART)
        parts = before.app.state.service.conversations.message_stream(
            "acme", opened["id"], SendMessage(text="Hello."), "k"
        )
        await anext(parts)
        await parts.aclose()
    async with make_shop(sink=before.sink) as after:
        assert (await after.say(opened["id"], "Hello.", key="k")).json()["reply"]["text"] == f"{GREETING} {OFFER}"
        assert after.engine.requests == []
