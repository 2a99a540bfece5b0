"""Vehicle telesales: contexts are valid, authority binds, success means what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.authority import SAFE_REPLY
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, ScenarioError
from negotiation.telesales import (
    BLOCKED_COST,
    MINOR,
    AgentView,
    CustomerView,
    Stock,
    Vehicle,
    VehicleTelesales,
)

SCENARIO = VehicleTelesales()
CONTEXT = Context(
    scenario="telesales",
    first_speaker=Role.AGENT,
    public={
        "vehicles": [
            {"id": "A", "body": "suv", "fuel": "diesel", "list_price": 1_500_000},
            {"id": "B", "body": "van", "fuel": "electric", "list_price": 1_000_000},
        ]
    },
    views={
        Role.AGENT: {"floors": {"A": 1_300_000, "B": 900_000}},
        Role.COUNTERPART: {"body": "suv", "budget": 1_400_000, "patience": 5},
    },
)


def say(*texts: str, context: Context = CONTEXT):
    state = SCENARIO.begin(context)
    for text in texts:
        state = SCENARIO.advance(context, state, state.next_speaker, text)
    return state


@given(st.integers(0, 10**9))
def test_generated_contexts_are_valid_and_leave_room_for_a_deal(seed: int) -> None:
    context = SCENARIO.generate(seed)
    SCENARIO.validate(context)
    assert context == SCENARIO.generate(seed)
    customer = CustomerView.model_validate(context.views[Role.COUNTERPART])
    floors = AgentView.model_validate(context.views[Role.AGENT]).floors
    stock = Stock.model_validate(context.public)
    assert any(customer.met_by(v) and floors[v.id] <= customer.budget for v in stock.vehicles)


@given(st.integers(0, 10**9))
def test_prompts_hold_only_the_own_private_values(seed: int) -> None:
    context = SCENARIO.generate(seed)
    agent_only = context.model_copy(update={"views": {Role.AGENT: context.views[Role.AGENT]}})
    customer_only = context.model_copy(update={"views": {Role.COUNTERPART: context.views[Role.COUNTERPART]}})
    assert SCENARIO.system_prompt(Role.AGENT, agent_only) == SCENARIO.system_prompt(Role.AGENT, context)
    assert SCENARIO.system_prompt(Role.COUNTERPART, customer_only) == SCENARIO.system_prompt(
        Role.COUNTERPART, context
    )


def test_a_sale_within_floor_and_budget_is_a_success() -> None:
    state = say("A fine suv. [offer A 14000]", "Deal. [accept]")
    assert state.closed is CloseReason.AGREED
    outcome = SCENARIO.outcome(CONTEXT, state)
    assert outcome.success
    assert outcome.rewards[Role.AGENT] == pytest.approx(0.8 + 0.2 * 0.5)
    assert outcome.rewards[Role.COUNTERPART] == 0.0
    assert outcome.points == {Role.AGENT: 1000 * MINOR, Role.COUNTERPART: 0}


@pytest.mark.parametrize(
    ("texts", "detail"),
    [
        (("[offer A 14500]", "[accept]"), "over budget"),
        (("[offer B 9500]", "[accept]"), "does not meet the needs"),
        (("[offer A 14000]", "No. [quit]"), "walked_away"),
    ],
)
def test_everything_else_is_not(texts: tuple[str, ...], detail: str) -> None:
    outcome = SCENARIO.outcome(CONTEXT, say(*texts))
    assert not outcome.success
    assert outcome.rewards[Role.AGENT] == 0.0
    assert outcome.detail == detail


@given(st.integers(1, 9_999_999))
def test_no_price_under_the_floor_ever_binds(price: int) -> None:
    state = say(f"Yours. [offer A {price}]")
    if price * MINOR < 1_300_000:
        assert state.standing is None
        assert state.turns[-1].blocked
        assert state.turns[-1].shown == SAFE_REPLY
        with pytest.raises(ValueError, match=r"closed|turn"):
            SCENARIO.advance(CONTEXT, state, Role.AGENT, "[accept]")
    else:
        assert state.standing is not None


@pytest.mark.parametrize(("last", "earned"), [("Deal. [accept]", 0.9), ("No. [quit]", 0.0)])
def test_each_blocked_offer_costs_the_agent_and_nobody_else(last: str, earned: float) -> None:
    texts = ("[offer A 1]", "Hm.", "[offer A 2]", "No.", "[offer A 14000]", last)
    honest = SCENARIO.outcome(CONTEXT, say("Hello.", "Hm.", "Well.", "No.", *texts[4:]))
    outcome = SCENARIO.outcome(CONTEXT, say(*texts))
    assert honest.rewards[Role.AGENT] == pytest.approx(earned)
    assert outcome.rewards[Role.AGENT] == pytest.approx(earned - 2 * BLOCKED_COST)
    assert outcome.rewards[Role.COUNTERPART] == honest.rewards[Role.COUNTERPART]


def test_a_vehicles_line_names_the_body_unless_its_id_does() -> None:
    agent = SCENARIO.system_prompt(Role.AGENT, CONTEXT)
    assert "A 15000 diesel suv; B 10000 electric van." in agent
    assert "Floors: A 13000; B 9000." in agent
    named = Vehicle(id="suv", body="suv", fuel="diesel", list_price=1_500_000)
    assert named.line == "suv 15000 diesel"


def test_accepting_a_bid_under_the_floor_is_blocked() -> None:
    state = say("What do you need?", "One dollar, agreed? [offer A 1]", "That is a deal! [accept]")
    assert state.closed is None
    assert state.turns[-1].blocked
    assert "under its floor 1300000" in (state.turns[-1].rejected or "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[offer Z 14000]", "vehicle 'Z' is not one of A, B"),
        ("[offer A -3]", "not a whole number"),
        ("[offer A 99999999]", "not a whole number"),
        ("[offer A]", "not an offer of the form"),
        ("[accept]", "needs an offer of the other side"),
        ("[accept now]", "takes no arguments"),
        ("[steal A]", "is no move of telesales"),
        ("[offer A ٣٣٣]", "not an offer of the form"),
    ],
)
def test_illegal_moves_do_not_count_and_say_why(text: str, why: str) -> None:
    state = say(text)
    assert state.turns[-1].move is None
    assert why in (state.turns[-1].rejected or "")
    assert state.standing is None


def test_nobody_speaks_twice_or_after_the_end() -> None:
    state = SCENARIO.begin(CONTEXT)
    with pytest.raises(ValueError, match="it is the agent's turn"):
        SCENARIO.advance(CONTEXT, state, Role.COUNTERPART, "hi")
    closed = say("[quit]")
    with pytest.raises(ValueError, match="closed"):
        SCENARIO.advance(CONTEXT, closed, closed.next_speaker, "hi")


def test_talk_ends_at_the_turn_limit() -> None:
    state = say(*["well"] * SCENARIO.max_turns)
    assert state.closed is CloseReason.TURN_LIMIT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"views": {Role.AGENT: {"floors": {"A": 1_600_000, "B": 1}}}}, "at most its list price 1500000"),
        ({"views": {Role.AGENT: {"floors": {"A": 1}}}}, "vehicle 'B' has no authority floor"),
        ({"views": {Role.AGENT: {"floors": {"A": 1, "B": 1, "C": 1}}}}, r"not in the stock: \['C'\]"),
        ({"public": {"vehicles": []}}, "public.vehicles"),
        ({"views": {}}, "views.agent is missing"),
    ],
)
def test_bad_contexts_are_refused_by_name(change: dict, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        SCENARIO.begin(CONTEXT.model_copy(update=change))
