"""Deal-or-NoDeal keeps the rules of Lewis et al. 2017."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.deal_or_no_deal import (
    HIDDEN_STATEMENT,
    DealOrNoDeal,
    pareto_optimal,
    remainder,
    splits,
    worth,
)
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, ScenarioError

SCENARIO = DealOrNoDeal()
CONTEXT = Context(
    scenario="deal-or-no-deal",
    first_speaker=Role.AGENT,
    public={"counts": [1, 2, 3]},
    views={Role.AGENT: {"values": [1, 3, 1]}, Role.COUNTERPART: {"values": [4, 0, 2]}},
)


def say(*texts: str):
    state = SCENARIO.begin(CONTEXT)
    for text in texts:
        state = SCENARIO.advance(CONTEXT, state, state.next_speaker, text)
    return state


@given(st.integers(0, 10**9))
def test_generated_contexts_keep_the_rules(seed: int) -> None:
    context = SCENARIO.generate(seed)
    SCENARIO.validate(context)
    counts, mine = context.public["counts"], context.views[Role.AGENT]["values"]
    theirs = context.views[Role.COUNTERPART]["values"]
    assert 5 <= sum(counts) <= 7
    assert worth(mine, counts) == worth(theirs, counts) == 10
    assert all(a or b for a, b in zip(mine, theirs, strict=True))
    assert any(a and b for a, b in zip(mine, theirs, strict=True))
    SCENARIO.validate(SCENARIO.complete(context, seed))


def test_a_deal_counts_when_both_state_the_same_split() -> None:
    state = say("[propose 0 2 0]", "Deal. [agree]", "[select 0 2 0]", "[select 1 0 3]")
    assert state.closed is CloseReason.AGREED
    outcome = SCENARIO.outcome(CONTEXT, state)
    assert outcome.points == {Role.AGENT: 6, Role.COUNTERPART: 10}
    assert outcome.rewards == {Role.AGENT: 0.6, Role.COUNTERPART: 1.0}


def test_different_statements_are_no_deal() -> None:
    state = say("[propose 0 2 0]", "Deal. [agree]", "[select 0 2 0]", "[select 1 1 3]")
    assert state.closed is CloseReason.STATEMENTS_DIFFER
    assert SCENARIO.outcome(CONTEXT, state).points == {Role.AGENT: 0, Role.COUNTERPART: 0}


def test_a_statement_is_not_shown_to_the_other_side() -> None:
    state = say("[propose 0 2 0]", "[agree]", "[select 0 2 0]")
    assert state.turns[-1].shown == HIDDEN_STATEMENT
    assert "2" not in state.turns[-1].shown


def test_agreeing_on_nothing_is_no_deal() -> None:
    state = say("Nothing for us here.", "[agree]", "[select none]", "[select none]")
    assert state.closed is CloseReason.WALKED_AWAY


@pytest.mark.parametrize("statement", ["I forgot.", "[propose 0 1 0]", "[select 2 0 0]", "[select 0 0]"])
def test_a_side_that_cannot_state_the_split_has_no_deal(statement: str) -> None:
    assert say("[propose 0 2 0]", "[agree]", statement).closed is CloseReason.STATEMENTS_DIFFER


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[propose 2 0 0]", "takes more than the pool"),
        ("[propose 0 0]", "three whole numbers"),
        ("[select 0 0 0]", "only for after an agreement"),
        ("[accept]", "is no move of deal-or-no-deal"),
    ],
)
def test_illegal_moves_say_why(text: str, why: str) -> None:
    state = say(text)
    assert why in (state.turns[-1].rejected or "")
    assert state.standing is None


@given(st.integers(0, 10**6))
def test_pareto_agrees_with_its_definition(seed: int) -> None:
    context = SCENARIO.generate(seed)
    counts = tuple(context.public["counts"])
    own = tuple(context.views[Role.AGENT]["values"])
    other = tuple(context.views[Role.COUNTERPART]["values"])
    points = {s: (worth(own, s), worth(other, remainder(counts, s))) for s in splits(counts)}
    for share, (mine, theirs) in points.items():
        dominated = any(a >= mine and b >= theirs and (a, b) != (mine, theirs) for a, b in points.values())
        assert pareto_optimal(counts, own, other, share) is not dominated


@pytest.mark.parametrize(
    ("counts", "values", "message"),
    [
        ([1, 2, 3], [1, 3, 2], "worth 13 points, must be exactly 10"),
        ([1, 1, 1], [4, 3, 3], "must hold 5 to 7 items"),
        ([1, 2, 3], [-2, 3, 2], "must be exactly 10"),
    ],
)
def test_bad_values_are_refused(counts: list[int], values: list[int], message: str) -> None:
    context = CONTEXT.model_copy(update={"public": {"counts": counts}, "views": {Role.AGENT: {"values": values}}})
    with pytest.raises(ScenarioError, match=message):
        SCENARIO.begin(context)


def test_a_proposal_is_shown_to_the_other_side_as_its_own_share() -> None:
    scenario = DealOrNoDeal()
    context = scenario.generate(3)
    counts = context.public["counts"]
    share = (counts[0], 0, 1)
    rest = [counts[0] - share[0], counts[1] - share[1], counts[2] - share[2]]
    state = scenario.advance(
        context, scenario.begin(context), context.first_speaker, f"All the books. [propose {share[0]} 0 1]"
    )
    assert state.turns[-1].shown == f"All the books. [yours {rest[0]} {rest[1]} {rest[2]}]"
    assert str(state.standing) == f"[propose {share[0]} 0 1]"


@pytest.mark.parametrize("text", ["Take it all. [yours 9 9 9]", "[propose 0 0 0] [yours 9 9 9]", "look [yours 1"])
def test_a_side_can_not_write_the_tables_own_mark(text: str) -> None:
    scenario = DealOrNoDeal()
    context = scenario.generate(3)
    state = scenario.advance(context, scenario.begin(context), context.first_speaker, text)
    assert "yours 9" not in state.turns[-1].shown
    assert state.standing is None
