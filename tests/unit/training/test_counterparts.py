"""The scripted pool: legal, within its own limits, and no held-out family leaks into training."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.catalogue import NAMES, scenario_named
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from training.counterparts import (
    Negotiator,
    Split,
    deal_negotiators,
    negotiators,
    telesales_agents,
    telesales_customers,
)


def play(context: Context, players: dict[Role, Negotiator], seed: int) -> NegotiationState:
    scenario, rng = scenario_named(context.scenario), random.Random(seed)
    state = scenario.begin(context)
    while state.closed is None:
        role = state.next_speaker
        state = scenario.advance(context, state, role, players[role].reply(context, state, rng))
    return state


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10**6), pick=st.randoms(use_true_random=False))
def test_every_pairing_plays_legally_to_an_end(name: str, seed: int, pick: random.Random) -> None:
    context = scenario_named(name).generate(seed)
    players = {role: pick.choice(negotiators(name, role, pick.choice(("train", "held_out")))) for role in Role}
    state = play(context, players, seed)
    assert [turn.rejected for turn in state.turns if turn.rejected] == []
    assert not any(turn.blocked for turn in state.turns)
    if name == "telesales" and state.agreement is not None:
        outcome = scenario_named(name).outcome(context, state)
        assert outcome.detail != "over budget"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", list(Role))
def test_a_negotiator_does_not_see_the_other_view(name: str, role: Role) -> None:
    context = scenario_named(name).generate(3)
    blind = context.model_copy(update={"views": {role: context.views[role]}})
    state = NegotiationState(next_speaker=role)
    for split in ("warm_start", "train", "held_out"):
        for negotiator in negotiators(name, role, split):
            texts = {negotiator.reply(c, state, random.Random(1)) for c in (context, blind)}
            assert len(texts) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("split", ["warm_start", "train"])
def test_what_is_learned_from_and_held_out_families_are_disjoint(name: str, role: Role, split: Split) -> None:
    train, held_out = negotiators(name, role, split), negotiators(name, role, "held_out")
    assert {n.family for n in train}.isdisjoint(n.family for n in held_out)
    assert {n.name for n in train}.isdisjoint(n.name for n in held_out)

    def wordings(pool: tuple[Negotiator, ...]) -> set[str]:
        return {
            line
            for n in pool
            for lines in vars(n.wording).values()  # type: ignore[attr-defined]
            for line in lines
        }

    assert wordings(train).isdisjoint(wordings(held_out))


def test_training_and_held_out_customers_decide_by_other_rules() -> None:
    for module in (telesales_customers, deal_negotiators):
        learned = getattr(module, "WARM_START", ())
        rules = {
            split: {(type(n).accepts, getattr(type(n), "bid", None) or type(n).propose) for n in pool}  # type: ignore[attr-defined]
            for split, pool in (("train", (*learned, *module.TRAINING)), ("held_out", module.HELD_OUT))
        }
        for accepts, proposes in rules["held_out"]:
            assert all(accepts is not a and proposes is not p for a, p in rules["train"])
    assert telesales_agents.TRAINING[0].wording is not telesales_agents.HELD_OUT[0].wording


def test_an_unknown_scenario_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="scenarios are deal-or-no-deal, telesales"):
        negotiators("chess", Role.AGENT, "train")
