"""The scripted pool: legal, within its own limits, and no split leaks into another."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.catalogue import NAMES, scenario_named
from negotiation.moves import parse_message
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from negotiation.telesales import OBJECTIONS, CustomerView
from training.counterparts import (
    SPLITS,
    Negotiator,
    ScriptedNegotiator,
    Split,
    deal_negotiators,
    negotiators,
    telesales_agents,
    telesales_customers,
)
from training.counterparts.rules import family_rules
from training.counterparts.telesales_customers import CurveCustomer, with_article

HONEST: tuple[Split, ...] = ("train", "validation", "held_out")
LEARNED: tuple[Split, ...] = ("warm_start", "train")


def pool(name: str, split: Split) -> list[ScriptedNegotiator]:
    """Everybody of a split, whichever role they play."""
    found: list[ScriptedNegotiator] = []
    for role in Role:
        try:
            found += negotiators(name, role, split)
        except ValueError:
            assert (name, role) == ("telesales", Role.AGENT), "only telesales has splits without agents"
    return found


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
    players = {role: pick.choice(negotiators(name, role, pick.choice(HONEST))) for role in Role}
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
    for split in SPLITS:
        for negotiator in (n for n in pool(name, split) if n.role is role):
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
    with pytest.raises(ValueError, match="splits warm_start, train, validation, held_out"):
        negotiators("telesales", Role.AGENT, "adversary")


# --- Splits share nothing, read off the code that runs ------------------------------------------------------------


def overlaps(one: list[ScriptedNegotiator], other: list[ScriptedNegotiator]) -> list[str]:
    """All that two splits have in common, in words."""
    found = []
    for a, b in itertools.product(one, other):
        found += [f"family {a.family}"] if a.family == b.family else []
        found += [f"name {a.name}"] if a.name == b.name else []
        found += a.rules.shared_with(b.rules)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("one", "other"), [pair for pair in itertools.combinations(SPLITS, 2) if pair != LEARNED])
def test_no_two_splits_share_a_family_a_rule_or_a_sentence(name: str, one: Split, other: Split) -> None:
    assert overlaps(pool(name, one), pool(name, other)) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["held_out", "adversary"])
def test_each_held_out_family_and_adversary_decides_by_its_own_rules(name: str, split: Split) -> None:
    families = {n.family: n for n in pool(name, split)}
    for a, b in itertools.combinations(families.values(), 2):
        assert a.rules.proposal != b.rules.proposal
        assert a.rules.acceptance != b.rules.acceptance
        assert split == "held_out" or a.rules.wording != b.rules.wording


def test_a_family_that_only_bears_another_name_is_found_out() -> None:
    """Subclassing, renaming and other numbers change no rule; one borrowed sentence is a shared sentence."""

    class Renamed(CurveCustomer):
        pass

    class Wording:
        def __init__(self, *lines: str) -> None:
            self.lines = lines

    borrowed = dataclasses.replace(telesales_customers.TERSE, accept=("Deal.",))
    copy = Renamed("stranger", "stranger", borrowed, power=7.0)
    found = overlaps([copy], pool("telesales", "train"))
    assert {problem.split()[0] for problem in found} == {"proposal", "acceptance", "sentence"}
    assert "sentence 'Deal.'" in found
    rules = [family_rules(proposal=print, acceptance=print, wording=Wording(*w)) for w in ("ab", "ba", "ac")]
    assert rules[0].wording == rules[1].wording != rules[2].wording
    with pytest.raises(TypeError, match=r"Wording\.lines is 7"):
        family_rules(proposal=print, acceptance=print, wording=dataclasses.make_dataclass("Wording", ["lines"])(7))


ITEM = r"(?:\d books?|\d hats?|\d balls?)"
FIELDS = {
    "price": r"\d+",
    "vehicle": r"\w+",
    "concern": f"(?:{'|'.join((*OBJECTIONS, 'None'))})",
    "items": f"(?:{ITEM}(?: and {ITEM})*|nothing)",
}


def as_pattern(sentence: str, context: Context) -> re.Pattern[str]:
    """The sentence as it would be said in this context, standing by itself in a message."""
    fields = dict(FIELDS)
    if context.scenario == "telesales":
        view = CustomerView.model_validate(context.views[Role.COUNTERPART])
        need = f"{view.fuel} {view.body}" if view.fuel else view.body
        fields |= {"need": re.escape(need), "a_need": re.escape(with_article(need))}
    parts = re.split(r"\{(\w+)\}", sentence)
    said = "".join(fields[part] if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return re.compile(rf"(?:^|[.?!] ){said}(?: |$)")


def messages(name: str, split: Split, seeds: range) -> Iterator[tuple[Context, str]]:
    """All that the players of a split say to each other, without their moves."""
    sides = {role: [n for n in pool(name, split) if n.role is role] for role in Role}
    for seed in seeds:
        rng = random.Random(seed)
        context = scenario_named(name).generate(seed)
        players: dict[Role, Negotiator] = {role: rng.choice(sides[role]) for role in Role}
        for turn in play(context, players, seed).turns:
            yield context, parse_message(turn.text).speech


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["warm_start", "train", "validation"])
def test_no_held_out_sentence_is_ever_spoken_outside_its_split(name: str, split: Split) -> None:
    sentences = sorted({sentence for n in pool(name, "held_out") for sentence in n.rules.sentences})
    for context, said in messages(name, split, range(40)):
        assert [s for s in sentences if as_pattern(s, context).search(said)] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_search_for_leaks_finds_what_held_out_players_do_say(name: str) -> None:
    sentences = {sentence for n in pool(name, "held_out") for sentence in n.rules.sentences}
    heard = {
        sentence
        for context, said in messages(name, "held_out", range(40))
        for sentence in sentences
        if as_pattern(sentence, context).search(said)
    }
    assert len(heard) > 0.7 * len(sentences)
