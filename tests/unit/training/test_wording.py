"""Strange words: what is said survives, how it is said does not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.catalogue import scenario_named
from negotiation.moves import parse_message
from negotiation.roles import Role
from training.counterparts import negotiators
from training.wording import StrangeNegotiator, strange

TERMS = ("suv", "petrol", "warranty", "15250", "books")
FILLERS = ("I", "would", "like", "please", "Too", "much")


@given(words=st.lists(st.sampled_from(TERMS + FILLERS), max_size=8), seed=st.integers(0, 10_000))
def test_content_keeps_its_order_and_other_words_go(words: list[str], seed: int) -> None:
    said = strange(" ".join(words), random.Random(seed)).replace("?", "").replace("!", "").replace(".", "").split()
    assert [word for word in said if word in TERMS] == [word for word in words if word in TERMS]
    assert not set(said) & set(FILLERS)


@pytest.mark.parametrize("move", ["[offer suv 15250]", "[accept]", "[propose 1 0 2]", "[select none]"])
@pytest.mark.parametrize("words", ["", "Too much.", "Is it the suv?"])
def test_the_move_is_the_same_move(words: str, move: str) -> None:
    for seed in range(20):
        assert parse_message(strange(f"{words} {move}", random.Random(seed))).move == parse_message(move).move


def test_only_a_question_is_a_question_and_not_always() -> None:
    asked = [strange("What about the warranty?", random.Random(seed)).endswith("?") for seed in range(50)]
    assert any(asked)
    assert not all(asked)
    assert not any("?" in strange("Too much.", random.Random(seed)) for seed in range(50))


def test_the_same_seed_says_the_same() -> None:
    assert strange("I need an suv.", random.Random(1)) == strange("I need an suv.", random.Random(1))


@pytest.mark.parametrize("name", ["telesales", "deal-or-no-deal"])
def test_a_strange_negotiator_makes_the_moves_of_the_one_it_speaks_for(name: str) -> None:
    scenario = scenario_named(name)
    for player in negotiators(name, Role.COUNTERPART, "train"):
        context = scenario.generate(5)
        state = scenario.begin(context)
        if state.next_speaker is Role.AGENT:
            state = scenario.advance(context, state, Role.AGENT, "Hello, what are you looking for?")
        plain = player.reply(context, state, random.Random(7))
        other = StrangeNegotiator(player).reply(context, state, random.Random(7))
        assert parse_message(other).move == parse_message(plain).move
        assert other != plain
