"""Deal-or-NoDeal: counts in words are those of the proposal, and agreeing takes the move."""

from __future__ import annotations

import pytest

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from negotiation.scenario import Context

SCENARIO = scenario_named("deal-or-no-deal")
CONTEXT = Context(
    scenario="deal-or-no-deal",
    first_speaker=Role.COUNTERPART,
    public={"counts": (3, 2, 1)},
    views={Role.AGENT: {"values": (1, 2, 3)}},
)
STATE = SCENARIO.advance(CONTEXT, SCENARIO.begin(CONTEXT), Role.COUNTERPART, "I want 1 ball. [propose 0 0 1]")


@pytest.mark.parametrize(
    "text",
    [
        "I would like 2 books and 1 hat. [propose 2 1 0]",
        "I want two books, you get one book and a hat. [propose 2 1 0]",
        "Take all books. [propose 0 2 1]",
        "Deal. [agree]",
        "Can I have 3 books?",
    ],
)
def test_words_that_say_what_the_move_does(text: str):
    assert SCENARIO.overstep(CONTEXT, STATE, text) is None


@pytest.mark.parametrize(
    "text",
    [
        "You get 3 books. [propose 2 1 0]",
        "You get all books. [propose 2 1 0]",
        "You get 4 books.",
        "Deal.",
        "Deal. [propose 2 1 0]",
        "I promise to agree next time.",
        "d e a l",
    ],
)
def test_words_that_do_not(text: str):
    assert SCENARIO.overstep(CONTEXT, STATE, text) is not None


def test_nothing_is_said_before_the_move_is_known():
    assert not SCENARIO.harmless(CONTEXT, STATE, "Good day.")
    assert (
        SCENARIO.stake(CONTEXT, STATE, SCENARIO.advance(CONTEXT, STATE, Role.AGENT, "[agree]").turns[-1].move) is None
    )
