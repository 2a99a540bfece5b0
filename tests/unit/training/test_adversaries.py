"""Adversaries: their demands are met or not by structured moves alone, and authority holds against each of them."""

from __future__ import annotations

import random

import pytest

from negotiation.authority import SAFE_REPLY
from negotiation.catalogue import NAMES, scenario_named
from negotiation.deal_or_no_deal import Pool, Values, read_share, remainder, splits, worth
from negotiation.moves import parse_message
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, NegotiationState
from negotiation.telesales import MINOR, AgentView, CustomerView, Stock, offer, read_offer
from training.counterparts import negotiators
from training.counterparts.adversaries import Adversary
from training.counterparts.telesales_adversaries import CallAdversary

FAMILIES = {"lowballer", "bluffer", "false-agreement", "injector", "staller", "walk-away"}
SEEDS = range(20)


def adversaries(name: str, role: Role = Role.COUNTERPART) -> dict[str, Adversary]:
    found = {}
    for negotiator in negotiators(name, role, "adversary"):
        assert isinstance(negotiator, Adversary)
        found[negotiator.family] = negotiator
    return found


def callers() -> dict[str, CallAdversary]:
    return {
        family: caller for family, caller in adversaries("telesales").items() if isinstance(caller, CallAdversary)
    }


class Speaker:
    """A side that says what a function of context and state tells it to."""

    name = family = "speaker"

    def __init__(self, role: Role, say: object) -> None:
        self.role, self.say = role, say

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        assert callable(self.say)
        return str(self.say(context, state))


def play(context: Context, one: object, other: object) -> NegotiationState:
    scenario, rng = scenario_named(context.scenario), random.Random(1)
    players = {player.role: player for player in (one, other)}  # type: ignore[attr-defined]
    state = scenario.begin(context)
    while state.closed is None:
        role = state.next_speaker
        state = scenario.advance(context, state, role, players[role].reply(context, state, rng))
    return state


def wanted(context: Context) -> str:
    view = CustomerView.model_validate(context.views[Role.COUNTERPART])
    return next(v.id for v in Stock.model_validate(context.public).vehicles if view.met_by(v))


@pytest.mark.parametrize("name", NAMES)
def test_there_are_six_of_them(name: str) -> None:
    assert set(adversaries(name)) == FAMILIES
    assert set(callers()) == FAMILIES


# --- Telesales -----------------------------------------------------------------------------------------------------


def obey(context: Context, state: NegotiationState) -> str:
    """A seller with no will of its own: says back the last bracket that it heard, or takes what is on the table."""
    if state.standing_by is Role.COUNTERPART:
        return "As you wish. [accept]"
    heard = [turn.shown for turn in state.turns if turn.role is Role.COUNTERPART]
    numbers = [word.strip(".,;!?:]") for word in " ".join(heard).split()]
    price = next((word for word in reversed(numbers) if word.isdigit()), "1000")
    return f"As you wish. [offer {wanted(context)} {price}]"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_seller_who_does_whatever_it_is_told_still_never_binds_the_business_under_a_floor(family: str) -> None:
    caller = callers()[family]
    blocked = met = 0
    for seed in SEEDS:
        context = scenario_named("telesales").generate(seed)
        floors = AgentView.model_validate(context.views[Role.AGENT]).floors
        state = play(context, caller, Speaker(Role.AGENT, obey))
        for turn in state.turns:
            if turn.role is Role.AGENT and turn.move is not None and turn.move.kind == "offer":
                vehicle, price = read_offer(turn.move)
                assert price >= floors[vehicle]
            assert not turn.blocked or turn.shown == SAFE_REPLY
        if state.agreement is not None:
            vehicle, price = read_offer(state.agreement)
            assert price >= floors[vehicle]
        blocked += sum(turn.blocked for turn in state.turns)
        met += caller.demand_met(context, state)
    assert blocked
    assert met == len(SEEDS), "it complied every time, and was stopped by code alone"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_seller_who_keeps_to_its_floors_has_met_no_demand(family: str) -> None:
    caller = callers()[family]
    for seed in SEEDS:
        context = scenario_named("telesales").generate(seed)
        for seller in negotiators("telesales", Role.AGENT, "train"):
            assert not caller.demand_met(context, play(context, caller, seller))


@pytest.mark.parametrize("family", sorted(FAMILIES - {"staller"}))
def test_words_over_the_demand_and_unlawful_moves_are_no_concession(family: str) -> None:
    """Promises bind nobody; a blocked price over the demanded one gave in to something else; two moves are none."""
    caller = callers()[family]
    context = scenario_named("telesales").generate(3)
    demand = caller.demand(context)
    floor = AgentView.model_validate(context.views[Role.AGENT]).floors[demand.vehicle.id] // MINOR
    assert demand.price < floor - 1
    for words in (
        f"Yes, it is yours for {demand.price}, I promise.",
        f"Under the floor. [offer {demand.vehicle.id} {floor - 1}]",
        f"[offer {demand.vehicle.id} {demand.price}] [accept]",
        f"[offer yacht {demand.price}]",
        f"[agreed {demand.vehicle.id} {demand.price}]",
    ):
        state = play(context, caller, Speaker(Role.AGENT, lambda *_, words=words: words))
        assert not caller.demand_met(context, state), words
    told = f"Fine. {offer(demand.vehicle.id, demand.price * MINOR)}"
    assert caller.demand_met(context, play(context, caller, Speaker(Role.AGENT, lambda *_: told)))


def test_a_staller_has_won_when_the_seller_goes_under_a_floor_at_all() -> None:
    caller, context = callers()["staller"], scenario_named("telesales").generate(3)
    vehicle = wanted(context)
    floor = AgentView.model_validate(context.views[Role.AGENT]).floors[vehicle] // MINOR
    for price, met in ((floor, False), (floor - 1, True)):
        state = play(context, caller, Speaker(Role.AGENT, lambda *_, price=price: f"[offer {vehicle} {price}]"))
        assert state.closed is CloseReason.TURN_LIMIT
        assert caller.demand_met(context, state) is met


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_callers_keep_to_their_budget_and_come_to_an_end(family: str) -> None:
    caller = callers()[family]
    closed = set()
    for seed in SEEDS:
        context = scenario_named("telesales").generate(seed)
        budget = CustomerView.model_validate(context.views[Role.COUNTERPART]).budget
        for seller in (*negotiators("telesales", Role.AGENT, "train"), Speaker(Role.AGENT, lambda *_: "Hm.")):
            state = play(context, caller, seller)
            closed.add(state.closed)
            for turn in state.turns:
                if turn.role is Role.COUNTERPART and turn.move is not None and turn.move.kind == "offer":
                    assert read_offer(turn.move)[1] <= budget
            if state.agreement is not None:
                assert scenario_named("telesales").outcome(context, state).success
    if family == "staller":
        assert closed == {CloseReason.TURN_LIMIT}
    else:
        assert closed == {CloseReason.AGREED, CloseReason.WALKED_AWAY}, "hard to win over, and not impossible"


def said(family: str, seed: int = 3) -> list[str]:
    context = scenario_named("telesales").generate(seed)
    state = play(context, callers()[family], Speaker(Role.AGENT, lambda *_: "What else can I do for you?"))
    return [turn.text for turn in state.turns if turn.role is Role.COUNTERPART]


def test_each_presses_in_its_own_way() -> None:
    context = scenario_named("telesales").generate(3)
    assert any("ignore your instructions" in text for text in said("injector"))
    assert any(f"[offer {wanted(context)} 1000]" in text for text in said("injector"))
    assert any("<|system|>" in text for text in said("injector"))
    assert not any("[" in text for text in said("staller"))
    assert len(said("walk-away")) < len(said("lowballer"))
    bids = {str(parse_message(text).move) for text in said("lowballer")[:-1]}
    assert len(bids) == 1, "the same absurd bid again and again"
    rejected = [
        turn.rejected
        for turn in play(context, callers()["false-agreement"], Speaker(Role.AGENT, lambda *_: "No.")).turns
        if turn.role is Role.COUNTERPART
    ]
    assert any(rejected), "the agreement that it claims is no legal move"


def test_a_false_agreement_never_buys_by_accident() -> None:
    """While the agent's own offer stands, an [accept] would be a purchase: it writes another non-move then."""
    caller = callers()["false-agreement"]
    for seed in SEEDS:
        context = scenario_named("telesales").generate(seed)
        vehicle = next(v for v in Stock.model_validate(context.public).vehicles if v.id == wanted(context))
        told = f"No. {offer(vehicle.id, vehicle.list_price)}"
        state = play(context, caller, Speaker(Role.AGENT, lambda *_, told=told: told))
        budget = CustomerView.model_validate(context.views[Role.COUNTERPART]).budget
        assert state.agreement is None or vehicle.list_price <= 0.93 * budget


# --- Deal-or-NoDeal ------------------------------------------------------------------------------------------------


def yielding(victim: Role) -> Speaker:
    """Agrees to whatever is proposed, and states its own share of that."""

    def say(context: Context, state: NegotiationState) -> str:
        if any(turn.move is not None and turn.move.kind == "agree" for turn in state.turns):
            if state.standing is None:
                return "[select none]"
            counts = Pool.model_validate(context.public).counts
            share = read_share(state.standing, counts)
            mine = share if state.standing_by is victim else remainder(counts, share)
            return f"[select {' '.join(map(str, mine))}]"
        return "As you wish. [agree]" if state.standing_by is victim.other else "Go on."

    return Speaker(victim, say)


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("family", ["lowballer", "injector", "walk-away", "bluffer", "false-agreement"])
def test_whoever_yields_everything_has_met_the_demand_where_it_is_left_nothing(family: str, role: Role) -> None:
    player = adversaries("deal-or-no-deal", role)[family]
    met = 0
    for seed in SEEDS:
        context = scenario_named("deal-or-no-deal").generate(seed)
        state = play(context, player, yielding(role.other))
        assert state.closed is CloseReason.AGREED
        points = scenario_named("deal-or-no-deal").outcome(context, state).points[role.other]
        assert player.demand_met(context, state) is (points <= 1)
        met += points <= 1
    assert met


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_fair_partner_loses_nothing_to_them_and_all_games_end(family: str, role: Role) -> None:
    player = adversaries("deal-or-no-deal", role)[family]
    agreed = 0
    for seed in SEEDS:
        context = scenario_named("deal-or-no-deal").generate(seed)
        for partner in negotiators("deal-or-no-deal", role.other, "train"):
            state = play(context, player, partner)
            assert not player.demand_met(context, state)
            agreed += state.closed is CloseReason.AGREED
    assert (agreed > 0) is (family != "staller")


def test_a_generous_offer_wins_over_all_but_the_staller() -> None:
    for family, player in adversaries("deal-or-no-deal").items():
        context = scenario_named("deal-or-no-deal").generate(2)
        counts = Pool.model_validate(context.public).counts
        theirs = Values.model_validate(context.views[Role.COUNTERPART]).values
        mine = max((s for s in splits(counts) if worth(theirs, remainder(counts, s)) >= 8), key=sum)
        written = " ".join(map(str, mine))

        def say(_: Context, state: NegotiationState, written: str = written) -> str:
            agreed = any(turn.move is not None and turn.move.kind == "agree" for turn in state.turns)
            return f"[select {written}]" if agreed else f"[propose {written}]"

        state = play(context, player, Speaker(Role.AGENT, say))
        assert (state.closed is CloseReason.AGREED) is (family != "staller"), family


def test_a_claimed_agreement_binds_only_who_believes_it() -> None:
    """Nobody proposes but the adversary: it agrees with itself in the end, and the other side states no split."""
    player = adversaries("deal-or-no-deal")["false-agreement"]
    for seed in SEEDS:
        context = scenario_named("deal-or-no-deal").generate(seed)

        def deny(_: Context, state: NegotiationState) -> str:
            agreed = any(turn.move is not None and turn.move.kind == "agree" for turn in state.turns)
            return "[select none]" if agreed else "We agreed to nothing."

        state = play(context, player, Speaker(Role.AGENT, deny))
        assert any(turn.rejected for turn in state.turns if turn.role is Role.COUNTERPART)
        assert any(turn.move is not None and turn.move.kind == "agree" for turn in state.turns)
        assert state.closed is CloseReason.STATEMENTS_DIFFER
        assert not player.demand_met(context, state)
