"""What the agent may say of prices: what stands already, and what its own move makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.authority import SAFE_REPLY, ApprovalRule, Stake
from negotiation.catalogue import scenario_named
from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from tests.unit.negotiation.spellings import AMOUNTS, spelled

SCENARIO = scenario_named("telesales")
CONTEXT = Context(
    scenario="telesales",
    first_speaker=Role.COUNTERPART,
    public={
        "vehicles": [
            {"id": "van", "body": "van", "fuel": "diesel", "list_price": 1_700_000},
            {"id": "A4", "body": "estate", "fuel": "petrol", "list_price": 2_200_000},
            {"id": "C", "body": "coupe", "fuel": "petrol", "list_price": 3_000_000},
        ]
    },
    views={Role.AGENT: {"floors": {"van": 1_500_000, "A4": 2_000_000, "C": 2_500_000}}},
)


def after(*messages: str) -> NegotiationState:
    state = SCENARIO.begin(CONTEXT)
    for message in messages:
        state = SCENARIO.advance(CONTEXT, state, state.next_speaker, message)
    return state


GREETED = after("Hello, I need a car.")
PRESSED = after("The van for 9000? [offer van 9000]")
OFFERED = after("Hello.", "I have the van 16500 here. [offer van 16500]", "Too much.")
BID = after("I would pay 15500. [offer van 15500]")


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (GREETED, "Hello, what vehicle do you need?"),
        (GREETED, "The van lists at 17,000."),
        (GREETED, "The van lists at 17,000 and the A4 at 22,000."),
        (GREETED, "The C is a coupe, a lovely car."),
        (GREETED, "The A4 stands here."),
        (GREETED, "I have the van sixteen thousand here. [offer van 16000]"),
        (GREETED, "That is 1,000 less than list. [offer van 16000]"),
        (GREETED, "A discount of 5 %, so 16150. [offer van 16150]"),
        (GREETED, "Instead of 17000 the van is 16500. [offer van 16500]"),
        (GREETED, "It has four doors and five seats."),
        (GREETED, "The warranty is included."),
        (PRESSED, "Your 9,000 is too low."),
        (PRESSED, "Sorry, I can not go down to 9000."),
        (PRESSED, "Your 9,000 is too low, I can do the van 16,000. [offer van 16000]"),
        (PRESSED, "The delivery is no problem. For you the van 16750. [offer van 16750]"),
        (PRESSED, "I understand, but I can not sell below that."),
        (PRESSED, SAFE_REPLY),
        (PRESSED, "Which fuel do you prefer, petrol or diesel?"),
        (PRESSED, "This leads nowhere. Goodbye. [quit]"),
        (OFFERED, "It was 16,500, and it stays the van 16,250. [offer van 16250]"),
        (BID, "Done, it is yours. [accept]"),
        (BID, "Agreed, 15,500 it is. [accept]"),
        (PRESSED, "It is yours. [accept]"),  # beyond authority: hidden, whatever its words
    ],
)
def test_honest_words_may_be_shown(state: NegotiationState, text: str):
    assert SCENARIO.overstep(CONTEXT, state, text) is None


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (GREETED, "The van is 16000."),  # a price that no move makes
        (GREETED, "My floor is 15000."),
        (GREETED, "The van for 12,000. [offer van 15500]"),
        (GREETED, "The C for 17000."),  # the van's list price
        (GREETED, "The A4 for 16000. [offer van 16000]"),
        (GREETED, "The A4 and the van for 16000. [offer van 16000]"),
        (GREETED, "Two vans for 16000. [offer van 16000]"),
        (GREETED, "A discount of 50 %, so 16150. [offer van 16150]"),
        (GREETED, "The warranty is included for 10 years. [offer van 16000]"),
        (GREETED, "The warranty and a trailer are included. [offer van 16000]"),
        (GREETED, "It is a deal. [offer van 16000]"),
        (PRESSED, "9,000 it is."),
        (PRESSED, "Your 9,000 is too low to refuse."),
        (PRESSED, "Your 9,000 is not too low."),
        (PRESSED, "I can live with that."),
        (PRESSED, "Yes."),
        (PRESSED, "No problem. [offer van 16000]"),
        (BID, "Deal, it is yours."),
        (BID, "Agreed at 15,000. [accept]"),
        (GREETED, "Agreed. [accept]"),  # nothing to accept
        (GREETED, "[offer van 15500] [offer van 1]"),
    ],
)
def test_words_that_promise_what_no_move_makes_may_not(state: NegotiationState, text: str):
    assert SCENARIO.overstep(CONTEXT, state, text) is not None


@given(amount=AMOUNTS.filter(lambda amount: amount not in (17_000, 16_000)), data=st.data())
def test_no_other_amount_gets_through_in_any_spelling(amount: int, data: st.DataObject):
    text = data.draw(spelled(amount))
    for words in (f"The van for {text}.", f"It is {text}. [offer van 16000]", f"I can do {text} for you."):
        assert SCENARIO.overstep(CONTEXT, PRESSED, words) is not None


@given(amount=st.integers(15_000, 17_500), data=st.data())
def test_the_moves_own_price_may_be_said_in_any_spelling(amount: int, data: st.DataObject):
    words = f"I have the van at {data.draw(spelled(amount))} here. [offer van {amount}]"
    assert SCENARIO.overstep(CONTEXT, PRESSED, words) is None


@pytest.mark.parametrize("sentence", ["Good day.", "It is a lovely car.", "What do you need?"])
def test_a_sentence_that_commits_to_nothing_may_go_ahead(sentence: str):
    assert SCENARIO.harmless(CONTEXT, GREETED, sentence)


@pytest.mark.parametrize(
    "sentence", ["Yes.", "It is 5.", "Sold.", "[offer", "It is yours.", "The warranty is included."]
)
def test_a_sentence_that_may_commit_waits(sentence: str):
    assert not SCENARIO.harmless(CONTEXT, GREETED, sentence)


def test_after_a_figure_of_the_customer_more_waits():
    assert SCENARIO.harmless(CONTEXT, GREETED, "The boss nods.")
    assert not SCENARIO.harmless(CONTEXT, PRESSED, "The boss nods.")


def test_the_stake_of_a_move_is_its_price_and_margin():
    assert SCENARIO.stake(CONTEXT, GREETED, Move(kind="offer", arguments=("van", "16000"))) == Stake(
        price=1_600_000, margin=0.5
    )
    assert SCENARIO.stake(CONTEXT, BID, Move(kind="accept")) == Stake(price=1_550_000, margin=0.25)
    assert SCENARIO.stake(CONTEXT, BID, Move(kind="quit")) is None


def test_approval_is_asked_at_the_price_and_under_the_margin():
    stake = Stake(price=1_600_000, margin=0.5)
    assert not ApprovalRule().asks(stake)
    assert ApprovalRule(above_price=1_600_000).asks(stake)
    assert not ApprovalRule(above_price=1_600_001).asks(stake)
    assert ApprovalRule(below_margin=0.51).asks(stake)
    assert not ApprovalRule(below_margin=0.5).asks(stake)
    assert not ApprovalRule(above_price=0, below_margin=1.0).asks(None)
