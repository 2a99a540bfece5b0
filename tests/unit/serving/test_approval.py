"""Offers that a person must confirm: the customer is told to wait, nothing binds, and nothing is lost meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import pytest

from negotiation.authority import APPROVAL_NOTICE, SAFE_REPLY
from negotiation.catalogue import scenario_named
from negotiation.events import Approval, Message, Offer
from negotiation.roles import Role

CONTEXT = scenario_named("telesales").generate(1)
FLOORS = CONTEXT.views[Role.AGENT]["floors"]
VEHICLE = next(iter(FLOORS))
PRICE = FLOORS[VEHICLE] // 100 + 250
WORDS = f"I have the {VEHICLE} {PRICE} here. [offer {VEHICLE} {PRICE}]"
HELD = {"approval_above_price": PRICE * 100}


def approver(shop: Any, tenant: str = "acme") -> dict[str, str]:
    return dict(shop.headers(f"{tenant}'s boss"))


async def decide(shop: Any, conversation: str, approved: bool, headers: dict[str, str], note: str = "") -> Any:
    body = {"approved": approved, "note": note}
    return await shop.client.post(f"/v1/conversations/{conversation}/approval", json=body, headers=headers)


async def held(shop: Any, **options: Any) -> dict[str, Any]:
    """A conversation whose offer waits for approval."""
    shop.engine.say = lambda request: WORDS
    opened = await shop.open(first=Role.COUNTERPART, **options)
    answer = (await shop.say(opened["id"], "What do you have?", key="said")).json()
    return {**opened, "answer": answer}


async def offers(shop: Any, conversation: str) -> list[Offer]:
    return [event.payload for event in await shop.logged(conversation) if isinstance(event.payload, Offer)]


async def test_the_offer_waits_and_the_customer_is_told_so(make_shop):
    async with make_shop(**HELD) as shop:
        waiting = await held(shop)
        reply = {"text": APPROVAL_NOTICE, "move": None}
        assert waiting["answer"] == {"reply": reply, "state": "awaiting_approval", "reason": None, "agreement": None}
        assert str(PRICE) not in str(waiting["answer"])
        shown = (await shop.client.get(f"/v1/conversations/{waiting['id']}")).json()
        assert shown["state"] == "awaiting_approval"
        assert [turn["role"] for turn in shown["turns"]] == ["counterpart"]
        assert (await offers(shop, waiting["id"])) == []
        again = await shop.say(waiting["id"], "Hello?")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "awaiting_approval")
        assert int(again.headers["retry-after"]) > 0
        path = f"/v1/conversations/{waiting['id']}/outcome"
        assert (await shop.client.post(path, json={"agreed": False})).status_code == 409
        retried = await shop.say(waiting["id"], "What do you have?", key="said")
        assert retried.json() == waiting["answer"]


async def test_approved_it_is_made_as_it_was(make_shop):
    async with make_shop(**HELD) as shop:
        waiting, boss = await held(shop), approver(shop)
        seen = await shop.client.get(f"/v1/conversations/{waiting['id']}/approval", headers=boss)
        assert seen.json() == {"text": WORDS, "move": {"kind": "offer", "arguments": [VEHICLE, str(PRICE)]}}
        answer = await decide(shop, waiting["id"], True, boss, "good customer")
        assert answer.json()["reply"] == {"text": WORDS, "move": seen.json()["move"]}
        assert answer.json()["state"] == "open"
        [offer] = await offers(shop, waiting["id"])
        assert (offer.binding, offer.approval, offer.approval_note) == (True, Approval.APPROVED, "good customer")
        assert [event.sequence for event in await shop.logged(waiting["id"])] == [0, 1, 2, 3]
        assert len(shop.engine.requests) == 1
        bought = (await shop.say(waiting["id"], "Good. [accept]")).json()
        assert bought["agreement"] == {"kind": "offer", "arguments": [VEHICLE, str(PRICE)]}


async def test_refused_the_safe_reply_is_given(make_shop):
    async with make_shop(**HELD) as shop:
        waiting = await held(shop)
        answer = await decide(shop, waiting["id"], False, approver(shop), "too dear")
        assert answer.json()["reply"] == {"text": SAFE_REPLY, "move": None}
        [offer] = await offers(shop, waiting["id"])
        assert (offer.binding, offer.approval, offer.approval_note) == (False, Approval.REFUSED, "too dear")
        shown = (await shop.client.get(f"/v1/conversations/{waiting['id']}")).json()
        assert str(PRICE) not in str(shown)
        assert "too dear" not in str(shown)
        record = await shop.app.state.service.conversations._checkpoints.read(waiting["id"])
        assert not any(record.sampled), "nothing that the customer was shown was sampled"
        shop.engine.say = lambda request: "Well?"
        assert (await shop.say(waiting["id"], "And then?")).json()["reply"]["text"] == "Well?"
        metrics = (await shop.client.get("/metrics")).text
        for what in ("asked", "refused"):
            assert f'sparring_approvals_total{{adapter="agent@1",what="{what}"}} 1.0' in metrics


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("crash", [True, False])
async def test_it_waits_across_a_restart(make_shop, approved, crash):
    async with make_shop(**HELD) as before:
        if crash:  # between the checkpoint and the log
            opened = await before.open(first=Role.COUNTERPART)
            before.engine.say = lambda request: WORDS
            before.cut_off(True)
            assert (await before.say(opened["id"], "What do you have?", key="said")).status_code == 500
            before.cut_off(False)
        else:
            opened = await held(before)
            await before.app.state.service.conversations.upkeep()
    async with make_shop(sink=before.sink, **HELD) as after:
        retried = await after.say(opened["id"], "What do you have?", key="said")
        assert retried.json()["state"] == "awaiting_approval"
        assert (await after.say(opened["id"], "Hello?")).json()["error"]["code"] == "awaiting_approval"
        answer = await decide(after, opened["id"], approved, approver(after))
        assert answer.json()["reply"]["text"] == (WORDS if approved else SAFE_REPLY)
        assert after.engine.requests == []
        assert [event.sequence for event in await after.logged(opened["id"])] == [0, 1, 2, 3]
        shown = (await after.client.get(f"/v1/conversations/{opened['id']}")).json()
        assert [turn["text"] for turn in shown["turns"]][-1] == answer.json()["reply"]["text"]


async def test_it_waits_across_a_kill(make_shop, tmp_path):
    async with make_shop(**HELD) as before:
        opened = await held(before)
        # What a kill leaves is what the disk holds at this moment.
        shutil.copytree(before.settings.state_dir, tmp_path / "killed", ignore=shutil.ignore_patterns("*.lock"))
        async with make_shop(sink=before.sink, state_dir=tmp_path / "killed", **HELD) as after:
            answer = await decide(after, opened["id"], True, approver(after))
            assert answer.json()["reply"]["text"] == WORDS
            assert after.engine.requests == []
            assert [event.sequence for event in await after.logged(opened["id"])] == [0, 1, 2, 3]


async def test_a_decision_is_made_once_and_repeated_safely(make_shop):
    async with make_shop(**HELD) as shop:
        waiting, boss = await held(shop), approver(shop)
        keyed = {**boss, "Idempotency-Key": "decision"}
        first = await decide(shop, waiting["id"], True, keyed)
        assert (await decide(shop, waiting["id"], True, keyed)).json() == first.json()
        assert (await decide(shop, waiting["id"], False, keyed)).status_code == 422
        late = await decide(shop, waiting["id"], False, boss)
        assert (late.status_code, late.json()["error"]["code"]) == (409, "nothing_to_approve")
        nothing = await shop.client.get(f"/v1/conversations/{waiting['id']}/approval", headers=boss)
        assert nothing.status_code == 409
        assert len(await offers(shop, waiting["id"])) == 1


async def test_only_the_tenants_own_admin_key_decides(make_shop):
    async with make_shop(**HELD) as shop:
        waiting = await held(shop)
        assert (await decide(shop, waiting["id"], True, shop.headers("acme"))).status_code == 403
        assert (await decide(shop, waiting["id"], True, shop.headers("root"))).status_code == 404
        assert (await decide(shop, waiting["id"], True, approver(shop, "rival"))).status_code == 404
        path = f"/v1/conversations/{waiting['id']}/approval"
        assert (await shop.client.get(path, headers=shop.headers("acme"))).status_code == 403
        assert (await shop.client.get(path, headers=approver(shop, "rival"))).status_code == 404
        assert (await offers(shop, waiting["id"])) == []


async def test_an_acceptance_waits_too_and_closes_once_approved(make_shop):
    async with make_shop(**HELD) as shop:
        shop.engine.say = lambda request: "Agreed. [accept]"
        opened = await shop.open(first=Role.COUNTERPART)
        answer = (await shop.say(opened["id"], f"I pay that. [offer {VEHICLE} {PRICE}]")).json()
        assert answer["state"] == "awaiting_approval"
        assert answer["agreement"] is None
        done = (await decide(shop, opened["id"], True, approver(shop))).json()
        assert (done["state"], done["reason"]) == ("closed", "agreed")
        assert (await shop.logged(opened["id"]))[-1].payload.type == "closed"
        assert shop.slots.pinned == {"agent@1": 0}


async def test_an_opening_offer_waits_and_one_under_the_limit_does_not(make_shop):
    async with make_shop(**HELD) as shop:
        shop.engine.say = lambda request: WORDS
        opened = await shop.open(first=Role.AGENT)
        assert (opened["state"], opened["message"]["text"]) == ("awaiting_approval", APPROVAL_NOTICE)
        assert (await decide(shop, opened["id"], True, approver(shop))).json()["reply"]["text"] == WORDS
        repeated = (await shop.say(opened["id"], "Again?")).json()
        assert repeated["state"] == "open", "terms that were approved need no second approval"
        cheaper = PRICE - 250
        shop.engine.say = lambda request: f"The {VEHICLE} {cheaper}. [offer {VEHICLE} {cheaper}]"
        assert (await shop.say(opened["id"], "Less?")).json()["state"] == "open"


async def test_thin_margins_wait(make_shop):
    async with make_shop(approval_below_margin=1.0) as shop:
        assert (await held(shop))["answer"]["state"] == "awaiting_approval"


async def test_beyond_the_limits_nothing_can_be_approved(make_shop):
    async with make_shop(approval_above_price=0) as shop:
        shop.engine.say = lambda request: f"Less. [offer {VEHICLE} 1]"
        opened = await shop.open(first=Role.COUNTERPART)
        answer = (await shop.say(opened["id"], "Hello")).json()
        assert (answer["state"], answer["reply"]["text"]) == ("open", SAFE_REPLY)


async def test_streamed_the_notice_follows_what_was_shown(make_shop):
    async with make_shop(**HELD) as shop:
        shop.engine.say = lambda request: f"Good day. {WORDS}"
        opened = await shop.open(first=Role.COUNTERPART)
        path = f"/v1/conversations/{opened['id']}/messages"
        response = await shop.client.post(path, json={"text": "Hello.", "stream": True})
        assert f"Good day. {APPROVAL_NOTICE}" in response.text
        assert str(PRICE) not in response.text
        answer = await decide(shop, opened["id"], False, approver(shop))
        assert answer.json()["reply"]["text"] == f"Good day. {SAFE_REPLY}"


async def test_an_offer_that_nobody_decides_about_lapses(make_shop):
    async with make_shop(conversation_ttl_seconds=0.001, **HELD) as shop:
        waiting = await held(shop)
        await asyncio.sleep(0.01)
        assert await shop.app.state.service.conversations.expire() == 1
        shown = (await shop.client.get(f"/v1/conversations/{waiting['id']}")).json()
        assert (shown["state"], shown["reason"]) == ("closed", "abandoned")
        late = await decide(shop, waiting["id"], True, approver(shop))
        assert late.json()["error"]["code"] == "nothing_to_approve"
        messages = [e.payload for e in await shop.logged(waiting["id"]) if isinstance(e.payload, Message)]
        assert [message.role for message in messages] == [Role.COUNTERPART]
