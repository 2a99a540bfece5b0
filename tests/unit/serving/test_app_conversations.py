"""Conversations over HTTP: what is answered, what is logged, and in which order."""

from __future__ import annotations

from itertools import pairwise

from negotiation.catalogue import scenario_named
from negotiation.events import Closed, Message, Offer, Opened, OutcomeReported
from negotiation.roles import Role
from negotiation.scenario import CloseReason

CONTEXT = scenario_named("telesales").generate(1)
FLOORS = CONTEXT.views[Role.AGENT]["floors"]
VEHICLE = next(iter(FLOORS))


def kinds(events) -> list[str]:
    return [event.payload.type for event in events]


async def test_the_agent_opens_when_it_speaks_first(shop):
    shop.engine.say = lambda request: f"Hello, a van? [offer {VEHICLE} 9000000]"
    opened = await shop.open(labels={"campaign": "spring"}, source="simulated")
    assert opened["adapter"] == "agent@1"
    assert opened["state"] == "open"
    assert opened["message"]["text"].startswith("Hello, a van?")
    assert opened["message"]["move"] == {"kind": "offer", "arguments": [VEHICLE, "9000000"]}
    events = await shop.logged(opened["id"])
    assert kinds(events) == ["opened", "message", "offer"]
    assert [event.sequence for event in events] == [0, 1, 2]
    assert {event.tenant for event in events} == {"acme"}
    payload = events[0].payload
    assert isinstance(payload, Opened)
    assert payload.source == "simulated"
    assert payload.labels == {"campaign": "spring"}
    assert set(payload.context.views) == {Role.AGENT}
    assert payload.context.seed is None


async def test_the_customer_opens_when_it_speaks_first(shop):
    opened = await shop.open(first=Role.COUNTERPART)
    assert opened["message"] is None
    assert kinds(await shop.logged(opened["id"])) == ["opened"]
    answer = (await shop.say(opened["id"], "I need a van.")).json()
    reply = {"text": "Good day.", "move": None}
    assert answer == {"reply": reply, "state": "open", "reason": None, "agreement": None}
    events = await shop.logged(opened["id"])
    assert kinds(events) == ["opened", "message", "message"]
    reply = events[-1].payload
    assert isinstance(reply, Message)
    assert reply.prompt_tokens == len(shop.engine.requests[-1].prompt_ids)
    assert reply.completion_tokens > 0


async def test_an_accepted_offer_closes_without_a_reply(shop):
    price = FLOORS[VEHICLE] // 100 + 250
    shop.engine.say = lambda request: f"Take it. [offer {VEHICLE} {price}]"
    opened = await shop.open()
    answer = (await shop.say(opened["id"], "Good. [accept]")).json()
    assert answer["reply"] is None
    assert (answer["state"], answer["reason"]) == ("closed", "agreed")
    assert answer["agreement"] == {"kind": "offer", "arguments": [VEHICLE, str(price)]}
    assert len(shop.engine.requests) == 1
    closed = (await shop.logged(opened["id"]))[-1].payload
    assert closed == Closed(reason=CloseReason.AGREED, agreement=closed.agreement)
    late = await shop.say(opened["id"], "And floor mats?")
    assert late.status_code == 409
    assert late.json()["error"]["code"] == "conversation_closed"


async def test_an_offer_beyond_authority_is_never_shown(shop):
    secret = FLOORS[VEHICLE] // 100 - 250
    shop.engine.say = lambda request: f"It is yours for less. [offer {VEHICLE} {secret}]"
    opened = await shop.open()
    assert str(secret) not in str(opened)
    assert opened["message"]["move"] is None
    shown = (await shop.client.get(f"/v1/conversations/{opened['id']}")).json()
    assert str(secret) not in str(shown)
    [offer] = [e.payload for e in await shop.logged(opened["id"]) if isinstance(e.payload, Offer)]
    assert not offer.binding
    assert "floor" in offer.rejected
    assert 'sparring_blocked_offers_total{adapter="agent@1"} 1.0' in (await shop.client.get("/metrics")).text


async def test_a_secret_selection_is_not_shown_before_the_end(shop):
    opened = await shop.open(scenario="deal-or-no-deal", first=Role.COUNTERPART)
    shop.engine.say = lambda request: "Fine. [agree]"
    await shop.say(opened["id"], "I take a ball. [propose 0 0 1]")
    shop.engine.say = lambda request: "[select 1 0 0]"
    answer = (await shop.say(opened["id"], "[select 0 0 1]")).json()
    assert answer["reply"] == {"text": "[selection]", "move": None}
    prompt = shop.engine.tokenizer.decode(list(shop.engine.requests[-1].prompt_ids))
    assert "[select 0 0 1]" not in prompt


async def test_transcripts_only_grow_and_hold_what_was_sampled(shop):
    opened = await shop.open()
    for text in ("How much is the first?", "Too much. [offer B 100]", "Well?"):
        await shop.say(opened["id"], text)
    prompts = [request.prompt_ids for request in shop.engine.requests]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before
    assert "How much is the first?" in shop.engine.tokenizer.decode(list(prompts[-1]))


async def test_a_finished_conversation_takes_one_outcome(shop):
    opened = await shop.open()
    path = f"/v1/conversations/{opened['id']}/outcome"
    view = CONTEXT.views[Role.COUNTERPART]
    report = {
        "agreed": False,
        "success": False,
        "rewards": {"agent": 0.0, "counterpart": -0.1},
        "counterpart_view": view,
    }
    early = await shop.client.post(path, json=report)
    assert (early.status_code, early.json()["error"]["code"]) == (409, "outcome_refused")
    await shop.say(opened["id"], "No. [quit]")
    wrong = await shop.client.post(path, json={**report, "counterpart_view": {"budget": -1}})
    assert wrong.status_code == 422
    assert wrong.json()["error"]["param"] == "counterpart_view"
    assert (await shop.client.post(path, json=report)).json() == {"id": opened["id"], "recorded": True}
    again = await shop.client.post(path, json=report)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "outcome_refused")
    last = (await shop.logged(opened["id"]))[-1].payload
    assert isinstance(last, OutcomeReported)
    assert last.counterpart_view == view
    assert (await shop.client.get(f"/v1/conversations/{opened['id']}")).json()["outcome_reported"]


async def test_a_conversation_without_room_for_another_message_is_closed(shop):
    shop.engine.context_length = 150
    opened = await shop.open(first=Role.COUNTERPART)
    answer = {"state": "open"}
    while answer["state"] == "open":
        answer = (await shop.say(opened["id"], "no")).json()
    assert answer["reason"] == "turn_limit"
    assert kinds(await shop.logged(opened["id"]))[-1] == "closed"


async def test_a_message_that_does_not_fit_is_refused_and_changes_nothing(shop):
    opened = await shop.open(first=Role.COUNTERPART)
    refused = await shop.say(opened["id"], "many words " * 300)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "message_too_long")
    assert "480" in refused.json()["error"]["message"]
    assert kinds(await shop.logged(opened["id"])) == ["opened"]
    assert (await shop.say(opened["id"], "Short.")).status_code == 200
    assert [e.sequence for e in await shop.logged(opened["id"])] == [0, 1, 2]


async def test_the_conversation_is_shown_as_the_customer_saw_it(shop):
    opened = await shop.open()
    await shop.say(opened["id"], f"I offer. [offer {VEHICLE} 100]")
    shown = (await shop.client.get(f"/v1/conversations/{opened['id']}")).json()
    assert [turn["role"] for turn in shown["turns"]] == ["agent", "counterpart", "agent"]
    assert shown["turns"][1]["move"] == {"kind": "offer", "arguments": [VEHICLE, "100"]}
    assert (shown["state"], shown["adapter"], shown["scenario"]) == ("open", "agent@1", "telesales")
    assert "floors" not in str(shown)
