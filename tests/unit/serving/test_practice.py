"""Practice talks over HTTP: what the player is told, what is kept from the player, and how a talk is scored."""

from __future__ import annotations

import json

import pytest

from negotiation.catalogue import NAMES, scenario_named
from negotiation.events import Closed, Opened, OutcomeReported
from negotiation.roles import Role
from negotiation.scenario import Context
from negotiation.telesales import MINOR


async def draw(shop, name="telesales", key=None):
    headers = {} if key is None else {"Idempotency-Key": key}
    response = await shop.client.post(f"/v1/scenarios/{name}/draw", headers=headers)
    assert response.status_code == 201, response.text
    return response.json()


async def opened_event(shop, drawn) -> Opened:
    payload = (await shop.logged(drawn["conversation"]["id"]))[0].payload
    assert isinstance(payload, Opened)
    return payload


def outcome_of(shop, drawn):
    return shop.client.post(f"/v1/conversations/{drawn['conversation']['id']}/score")


def error_code(response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_every_scenario_is_listed_in_words(shop):
    listed = (await shop.client.get("/v1/scenarios")).json()["scenarios"]
    assert [one["name"] for one in listed] == list(NAMES)
    assert all(one["title"] and one["about"] for one in listed)


@pytest.mark.parametrize("name", NAMES)
async def test_the_player_gets_the_customers_card_and_nothing_of_the_agents_side(shop, name):
    for _ in range(8):
        drawn = await draw(shop, name)
        context = (await opened_event(shop, drawn)).context
        scenario_named(name).validate(context)
        assert drawn["card"] == context.views[Role.COUNTERPART]
        assert drawn["public"] == context.public
        assert drawn["first_speaker"] == context.first_speaker
        assert (drawn["conversation"]["message"] is None) == (context.first_speaker is Role.COUNTERPART)
        assert set(drawn) == {"scenario", "public", "card", "first_speaker", "conversation"}
        assert "floors" not in json.dumps(drawn)
        shown = await shop.client.get(f"/v1/conversations/{drawn['conversation']['id']}")
        assert "views" not in shown.text


async def test_the_agent_is_not_told_the_card(shop):
    drawn = await draw(shop)
    await shop.say(drawn["conversation"]["id"], "Good day.")
    prompt = shop.engine.tokenizer.decode(shop.engine.requests[-1].prompt_ids)
    context = (await opened_event(shop, drawn)).context
    assert scenario_named("telesales").system_prompt(Role.AGENT, context) in prompt
    assert "budget" not in prompt
    assert "patience" not in prompt


async def test_practice_is_no_customer_and_no_scenario_that_judges(shop):
    drawn = await draw(shop)
    event = await opened_event(shop, drawn)
    assert event.source == "simulated"
    assert event.labels == {"channel": "page"}
    assert event.context.seed is None


async def test_draws_differ_and_a_retry_gets_the_first_one(shop, make_shop):
    first = await draw(shop, key="k1")
    assert await draw(shop, key="k1") == first
    assert {json.dumps((await draw(shop))["public"]) for _ in range(6)} != {json.dumps(first["public"])}
    other = await shop.client.post("/v1/scenarios/deal-or-no-deal/draw", headers={"Idempotency-Key": "k1"})
    assert error_code(other) == (422, "idempotency_key_reused")


async def test_a_draw_and_its_card_survive_a_restart(make_shop):
    async with make_shop() as before:
        first = await draw(before, key="k1")
    async with make_shop() as after:
        assert await draw(after, key="k1") == first
        await after.say(first["conversation"]["id"], "Goodbye. [quit]")
        assert (await outcome_of(after, first)).json()["agreed"] is False


async def test_an_accepted_offer_is_scored_by_the_card(shop):
    drawn = await draw(shop)
    context = (await opened_event(shop, drawn)).context
    vehicle = next(v for v in drawn["public"]["vehicles"] if v["body"] == drawn["card"]["body"])
    price = vehicle["list_price"] // MINOR
    shop.engine.say = lambda request: f"Take it. [offer {vehicle['id']} {price}]"
    await shop.say(drawn["conversation"]["id"], "I need one.")
    closed = (await shop.say(drawn["conversation"]["id"], "Good. [accept]")).json()
    assert closed["reason"] == "agreed"
    scored = (await outcome_of(shop, drawn)).json()
    assert scored["agreed"] is True
    assert scored["points"] == drawn["card"]["budget"] - price * MINOR
    assert scored["agreement"] == {"kind": "offer", "arguments": [vehicle["id"], str(price)]}
    assert scored["adapter"] == "agent@1"
    margin = price * MINOR - context.views[Role.AGENT]["floors"][vehicle["id"]]
    assert str(margin) not in {str(value) for value in scored.values()}, "the agent's margin gives its floor away"


async def test_a_split_is_scored_by_the_cards_values(shop):
    drawn = await draw(shop, "deal-or-no-deal")
    counts, values = drawn["public"]["counts"], drawn["card"]["values"]
    answers = iter(["Deal. [agree]", f"[select {counts[0] - 1} {counts[1]} {counts[2]}]"])
    shop.engine.say = lambda request: next(answers)
    conversation = drawn["conversation"]["id"]
    await shop.say(conversation, "One book. [propose 1 0 0]")
    assert (await shop.say(conversation, "[select 1 0 0]")).json()["reason"] == "agreed"
    scored = (await outcome_of(shop, drawn)).json()
    assert (scored["points"], scored["reward"]) == (values[0], values[0] / 10)


async def test_the_outcome_is_on_record_once(shop):
    drawn = await draw(shop)
    conversation = drawn["conversation"]["id"]
    await shop.say(conversation, "No. [quit]")
    first = await outcome_of(shop, drawn)
    assert (await outcome_of(shop, drawn)).json() == first.json()
    kinds = [type(event.payload) for event in await shop.logged(conversation)]
    assert kinds.count(Closed) == kinds.count(OutcomeReported) == 1
    reported = (await shop.logged(conversation))[-1].payload
    assert reported.rewards == {Role.AGENT: 0.0, Role.COUNTERPART: -0.1}


async def test_an_outcome_that_somebody_else_reported_stands(shop):
    drawn = await draw(shop)
    conversation = drawn["conversation"]["id"]
    await shop.say(conversation, "No. [quit]")
    await shop.client.post(f"/v1/conversations/{conversation}/outcome", json={"agreed": False, "note": "mine"})
    assert (await outcome_of(shop, drawn)).status_code == 200
    notes = [e.payload.note for e in await shop.logged(conversation) if isinstance(e.payload, OutcomeReported)]
    assert notes == ["mine"]


async def test_what_cannot_be_scored_says_why(shop):
    drawn = await draw(shop)
    assert error_code(await outcome_of(shop, drawn)) == (409, "conversation_open")
    live = await shop.open()
    await shop.say(live["id"], "No. [quit]")
    refused = await shop.client.post(f"/v1/conversations/{live['id']}/score")
    assert error_code(refused) == (409, "not_drawn")
    foreign = await shop.client.post(
        f"/v1/conversations/{drawn['conversation']['id']}/score", headers=shop.headers("rival")
    )
    assert error_code(foreign) == (404, "conversation_not_found")


async def test_practice_needs_a_tenants_key(shop):
    for method, path in (
        ("GET", "/v1/scenarios"),
        ("POST", "/v1/scenarios/telesales/draw"),
        ("POST", "/v1/conversations/conv_0/score"),
    ):
        anonymous = await shop.client.request(method, path, headers={"Authorization": ""})
        assert error_code(anonymous) == (401, "missing_api_key")
        operator = await shop.client.request(method, path, headers=shop.headers("root"))
        assert error_code(operator) == (403, "wrong_key_scope")
    assert await shop.logged() == []


async def test_an_unknown_scenario_names_the_known_ones(shop):
    response = await shop.client.post("/v1/scenarios/chess/draw")
    assert error_code(response) == (404, "unknown_scenario")
    assert "telesales" in response.json()["error"]["message"]


async def test_opening_still_accepts_no_customers_side(shop):
    body = shop.opening()
    body["context"]["views"]["counterpart"] = Context.model_validate(
        scenario_named("telesales").generate(1).model_dump()
    ).views[Role.COUNTERPART]
    assert (await shop.client.post("/v1/conversations", json=body)).status_code == 422
