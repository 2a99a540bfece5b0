"""Validation, enterprise and judging families: each does what its name says, within its limits, to an end."""

from __future__ import annotations

import itertools
import random

import pytest

from negotiation.catalogue import scenario_named
from negotiation.deal_or_no_deal import Pool, Values, read_share, remainder, worth
from negotiation.moves import Move, parse_message
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, NegotiationState
from negotiation.telesales import GRID, MINOR, AgentView, CustomerView, Stock, offer, read_offer
from training.counterparts import Negotiator, Split, negotiators
from training.counterparts.enterprise import TURNS, PurchasingPolicy
from training.counterparts.judging_sellers import BundleSeller, PatientSeller
from training.counterparts.random_walk import RandomWalkCustomer

SEEDS = range(25)


def play(context: Context, players: dict[Role, Negotiator], seed: int = 0) -> NegotiationState:
    scenario, rng = scenario_named(context.scenario), random.Random(seed)
    state = scenario.begin(context)
    while state.closed is None:
        role = state.next_speaker
        state = scenario.advance(context, state, role, players[role].reply(context, state, rng))
    return state


class Reciter:
    """Says one thing, or its lines one after the other and the last for ever."""

    name = family = "reciter"

    def __init__(self, role: Role, *lines: str) -> None:
        self.role, self.lines = role, lines

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        return self.lines[min(state.turns_by(self.role), len(self.lines) - 1)]


def against_reciter(player: Negotiator, context: Context, *lines: str) -> NegotiationState:
    return play(context, {player.role: player, player.role.other: Reciter(player.role.other, *lines)})


def moves(state: NegotiationState, role: Role) -> list[Move]:
    return [turn.move for turn in state.turns if turn.role is role and turn.move is not None]


@pytest.mark.parametrize("split", ["validation", "enterprise"])
def test_customers_stay_legal_within_budget_and_come_to_an_end_against_any_seller(split: Split) -> None:
    [customer] = negotiators("telesales", Role.COUNTERPART, split)
    for seed in SEEDS:
        context = scenario_named("telesales").generate(seed)
        budget = CustomerView.model_validate(context.views[Role.COUNTERPART]).budget
        for seller in (*negotiators("telesales", Role.AGENT, "train"), Reciter(Role.AGENT, "What a fine day.")):
            state = play(context, {Role.AGENT: seller, Role.COUNTERPART: customer}, seed)
            assert [turn.rejected for turn in state.turns if turn.rejected] == []
            offers = [read_offer(move)[1] for move in moves(state, Role.COUNTERPART) if move.kind == "offer"]
            assert all(0 < price <= budget for price in offers)
            if state.agreement is not None:
                assert read_offer(state.agreement)[1] <= budget


@pytest.mark.parametrize("split", ["validation", "enterprise"])
@pytest.mark.parametrize("role", list(Role))
def test_players_stay_legal_and_come_to_an_end_against_silence(split: Split, role: Role) -> None:
    [player] = negotiators("deal-or-no-deal", role, split)
    for seed in SEEDS:
        state = against_reciter(player, scenario_named("deal-or-no-deal").generate(seed), "Nice weather.")
        assert state.closed is CloseReason.WALKED_AWAY
        assert [turn.rejected for turn in state.turns if turn.rejected] == []


def test_a_random_walk_wanders_both_ways_and_is_the_same_however_often_it_is_asked() -> None:
    [customer] = negotiators("telesales", Role.COUNTERPART, "validation")
    assert isinstance(customer, RandomWalkCustomer)
    rose = fell = False
    for seed in SEEDS:
        context = scenario_named("telesales").generate(seed)
        bids = [
            [
                read_offer(m)[1]
                for m in moves(against_reciter(customer, context, expensive(context)), customer.role)
                if m.kind == "offer"
            ]
            for _ in range(2)
        ]
        assert bids[0] == bids[1]
        rose |= any(a < b for a, b in itertools.pairwise(bids[0]))
        fell |= any(a > b for a, b in itertools.pairwise(bids[0]))
    assert rose
    assert fell


def expensive(context: Context) -> str:
    """The suitable vehicle, far over any budget."""
    view = CustomerView.model_validate(context.views[Role.COUNTERPART])
    vehicle = next(v for v in Stock.model_validate(context.public).vehicles if view.met_by(v))
    return f"It comes with {view.objection}. {offer(vehicle.id, 3 * vehicle.list_price)}"


def test_a_random_walk_player_changes_its_share_by_one_item_at_a_time() -> None:
    for player in negotiators("deal-or-no-deal", Role.AGENT, "validation"):
        for seed in SEEDS:
            context = scenario_named("deal-or-no-deal").generate(seed)
            counts = Pool.model_validate(context.public).counts
            shares = [read_share(m, counts) for m in moves(against_reciter(player, context, "No."), player.role)[:-1]]
            assert len(shares) == 6
            for a, b in itertools.pairwise(shares):
                assert sum(abs(x - y) for x, y in zip(a, b, strict=True)) == 1


def test_sellers_who_judge_keep_their_floors_and_sell() -> None:
    for split in ("validation", "held_out"):
        for seller in negotiators("telesales", Role.AGENT, split):
            sold = 0
            for seed in SEEDS:
                context = scenario_named("telesales").generate(seed)
                floors = AgentView.model_validate(context.views[Role.AGENT]).floors
                for customer in negotiators("telesales", Role.COUNTERPART, "train"):
                    state = play(context, {Role.AGENT: seller, Role.COUNTERPART: customer}, seed)
                    assert not any(turn.blocked or turn.rejected for turn in state.turns)
                    for move in moves(state, Role.AGENT):
                        if move.kind == "offer":
                            assert read_offer(move)[1] >= floors[read_offer(move)[0]]
                    sold += state.agreement is not None
            assert sold > len(SEEDS), seller.name


def sale(seller: Negotiator, *lines: str, seed: int = 1) -> tuple[list[int], NegotiationState]:
    """The seller's prices to a customer who needs the first vehicle of the stock, and how it went."""
    context = scenario_named("telesales").generate(seed)
    vehicle = Stock.model_validate(context.public).vehicles[0]
    floors = AgentView.model_validate(context.views[Role.AGENT]).floors
    lines = tuple(line.format(body=vehicle.body, id=vehicle.id, floor=floors[vehicle.id] // MINOR) for line in lines)
    state = against_reciter(seller, context.model_copy(update={"first_speaker": Role.COUNTERPART}), *lines)
    return [read_offer(m)[1] for m in moves(state, Role.AGENT) if m.kind == "offer"], state


def test_a_bundle_seller_moves_only_towards_a_bid() -> None:
    seller = next(n for n in negotiators("telesales", Role.AGENT, "held_out") if isinstance(n, BundleSeller))
    prices, _ = sale(seller, "A {body}, please.", "Too much.")
    assert prices[1] == prices[0] - 2 * GRID * MINOR
    assert set(prices[1:]) == {prices[1]}
    towards, state = sale(seller, "A {body}, please.", "I bid. [offer {id} {floor}]")
    assert towards == sorted(set(towards), reverse=True)
    assert len(towards) == 3
    assert state.closed is CloseReason.AGREED


def test_a_patient_seller_waits_and_then_names_one_figure() -> None:
    [seller] = negotiators("telesales", Role.AGENT, "validation")
    assert isinstance(seller, PatientSeller)
    prices, _ = sale(seller, "A {body}, please.", "Too much.")
    assert len(set(prices)) == 2
    assert prices[: seller.patience - 1] == prices[:1] * (seller.patience - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_purchasing_names_one_figure_whatever_is_said_and_leaves_in_time(seed: int) -> None:
    [buyer] = negotiators("telesales", Role.COUNTERPART, "enterprise")
    assert isinstance(buyer, PurchasingPolicy)
    context = scenario_named("telesales").generate(seed)
    view = CustomerView.model_validate(context.views[Role.COUNTERPART])
    told = []
    for lines in (("What is your budget?",), (expensive(context), "Please, my children are hungry.")):
        state = against_reciter(buyer, context, *lines)
        assert state.closed is CloseReason.WALKED_AWAY
        assert state.turns_by(Role.AGENT) == TURNS
        told.append({parse_message(t.text).speech for t in state.turns[:-1] if t.role is Role.COUNTERPART})
        figures = {read_offer(m)[1] for m in moves(state, Role.COUNTERPART) if m.kind == "offer"}
        assert figures == {buyer.figure(view) * MINOR}
    assert told[0] == told[1]
    vehicle = next(v for v in Stock.model_validate(context.public).vehicles if view.met_by(v))
    floors = AgentView.model_validate(context.views[Role.AGENT]).floors
    price = max(floors[vehicle.id], buyer.figure(view) * MINOR)
    state = against_reciter(buyer, context, f"Here. {offer(vehicle.id, price)}")
    assert (state.closed is CloseReason.AGREED) == (price <= buyer.figure(view) * MINOR)


def test_an_allocation_policy_asks_for_one_share_and_takes_what_is_worth_as_much() -> None:
    for player in negotiators("deal-or-no-deal", Role.COUNTERPART, "enterprise"):
        for seed in SEEDS:
            context = scenario_named("deal-or-no-deal").generate(seed)
            counts = Pool.model_validate(context.public).counts
            values = Values.model_validate(context.views[Role.COUNTERPART]).values
            state = against_reciter(player, context, "Think of me too.", "I insist.")
            asked = {move.arguments for move in moves(state, Role.COUNTERPART) if move.kind == "propose"}
            assert len(asked) == 1
            [share] = [read_share(Move(kind="propose", arguments=one), counts) for one in asked]
            rest = remainder(counts, share)
            written = " ".join(map(str, rest))
            state = against_reciter(player, context, f"Yours. [propose {written}]", f"[select {written}]")
            assert state.closed is CloseReason.AGREED
            assert worth(values, share) >= 5
