"""The judge itself: it passes what is right, and finds every kind of violation in what was made wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.history.checker import (
    AGENT,
    CUSTOMER,
    UNTOLD,
    Fate,
    History,
    Kind,
    Row,
    Step,
    Talk,
    Turn,
    Violation,
    check,
)

World = tuple[History, list[Row]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A history, and a dataset that agrees with it: unknown requests may have been taken or not."""
    talks, rows = [], []
    for number in range(draw(st.integers(1, 4))):
        talk = Talk(f"talk{number}", f"id{number}", [Step(None, f"hello{number}")])
        turns = [Turn(AGENT, f"hello{number}")]
        for place in range(draw(st.integers(1, 4))):
            said, heard = f"s{number}.{place}", f"h{number}.{place}"
            acknowledged = draw(st.booleans())
            fate = Fate.ACKNOWLEDGED if acknowledged else Fate.UNKNOWN
            talk.steps.append(Step(said, heard if acknowledged else None, fate))
            if acknowledged or draw(st.booleans()):
                turns.append(Turn(CUSTOMER, said))
                turns += [Turn(AGENT, heard)] if acknowledged or draw(st.booleans()) else []
        talk.closed = draw(st.sampled_from(["agreed", UNTOLD]))
        talk.outcome = draw(st.sampled_from(list(Fate)))
        talk.note = None if talk.outcome is Fate.NOT_ASKED else f"note{number}"
        told = talk.outcome is Fate.ACKNOWLEDGED or (talk.outcome is Fate.UNKNOWN and draw(st.booleans()))
        talk.erasure = draw(st.sampled_from([Fate.NOT_ASKED, *Fate]))
        talks.append(talk)
        if talk.erasure is Fate.NOT_ASKED or (talk.erasure is Fate.UNKNOWN and draw(st.booleans())):
            rows.append(Row(f"id{number}", talk.name, tuple(turns), "agreed", str(talk.note) if told else ""))
    still_open = Talk("open", "idopen", [Step(None, "hello open")])
    return History((*talks, still_open, Talk("unopened"))), draw(st.permutations(rows))


def kinds(found: list[Violation]) -> set[Kind]:
    return {violation.kind for violation in found}


@given(worlds())
def test_a_dataset_that_agrees_has_no_violation(world: World) -> None:
    assert check(*world, {}) == []


def drop_row(history: History, rows: list[Row]) -> list[Row]:
    owed = [row for row in rows if row.id in history.owed()]
    assume(owed)
    return [row for row in rows if row != owed[0]]


def double_row(history: History, rows: list[Row]) -> list[Row]:
    return [*rows, rows[0]]


def invent_row(history: History, rows: list[Row]) -> list[Row]:
    return [*rows, replace(rows[0], id="nobody's")]


def name_wrongly(history: History, rows: list[Row]) -> list[Row]:
    return [replace(rows[0], name="somebody else"), *rows[1:]]


def write_open_one(history: History, rows: list[Row]) -> list[Row]:
    return [*rows, Row("idopen", "open", (Turn(AGENT, "hello open"),), "agreed", "")]


def write_erased(history: History, rows: list[Row]) -> list[Row]:
    erased = [talk for talk in history.talks if talk.erasure is Fate.ACKNOWLEDGED]
    assume(erased)
    return [*rows, Row(str(erased[0].id), erased[0].name, tuple(erased[0].acknowledged()), "agreed", "")]


def turns_changed(
    change: Callable[[tuple[Turn, ...]], tuple[Turn, ...]],
) -> Callable[[History, list[Row]], list[Row]]:
    return lambda history, rows: [replace(rows[0], turns=change(rows[0].turns)), *rows[1:]]


def swap(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    said = [turn for turn in turns if turn.role == CUSTOMER]
    assume(said)
    # The opening is always acknowledged: behind a customer's turn it is at the wrong place.
    return (*turns[1:], turns[0])


def close_otherwise(history: History, rows: list[Row]) -> list[Row]:
    ids = {talk.id for talk in history.talks if talk.closed == "agreed"}
    assume(rows[0].id in ids)
    return [replace(rows[0], closed="walked_away"), *rows[1:]]


def forget_outcome(history: History, rows: list[Row]) -> list[Row]:
    told = {talk.id for talk in history.talks if talk.outcome is Fate.ACKNOWLEDGED}
    assume(rows[0].id in told)
    return [replace(rows[0], note=""), *rows[1:]]


def tell_otherwise(history: History, rows: list[Row]) -> list[Row]:
    return [replace(rows[0], note="nobody's note"), *rows[1:]]


MUTATIONS = [
    (drop_row, Kind.MISSING_CONVERSATION),
    (double_row, Kind.DOUBLED_CONVERSATION),
    (invent_row, Kind.INVENTED_CONVERSATION),
    (name_wrongly, Kind.INVENTED_CONVERSATION),
    (write_open_one, Kind.INVENTED_CONVERSATION),
    (write_erased, Kind.ERASED_PRESENT),
    (turns_changed(lambda turns: turns[1:]), Kind.MISSING_TURN),
    (turns_changed(lambda turns: (*turns, turns[-1])), Kind.DOUBLED_TURN),
    (turns_changed(lambda turns: (*turns, Turn(CUSTOMER, "nobody's words"))), Kind.INVENTED_TURN),
    (turns_changed(lambda turns: (Turn(AGENT, "nobody's words"), *turns)), Kind.INVENTED_TURN),
    (turns_changed(swap), Kind.OUT_OF_ORDER),
    (close_otherwise, Kind.WRONG_ENDING),
    (forget_outcome, Kind.MISSING_OUTCOME),
    (tell_otherwise, Kind.WRONG_OUTCOME),
]


@pytest.mark.parametrize(("mutation", "kind"), MUTATIONS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_every_mutation_is_found(mutation: Callable[[History, list[Row]], list[Row]], kind: Kind) -> None:
    @given(worlds())
    def found(world: World) -> None:
        history, rows = world
        assume(rows)
        assert kind in kinds(check(history, mutation(history, rows), {}))

    found()


@given(worlds())
def test_a_dead_letter_is_found(world: World) -> None:
    assert kinds(check(*world, {"record: json_invalid": 1})) == {Kind.DEAD_LETTER}


def test_every_kind_is_made_by_some_mutation() -> None:
    assert {kind for _, kind in MUTATIONS} | {Kind.DEAD_LETTER} == set(Kind)


def test_a_request_of_unknown_outcome_may_be_there_once_at_its_place_only() -> None:
    steps = [Step(None, "hello"), Step("lost", None, Fate.UNKNOWN), Step("said", "heard")]
    history = History((Talk("t", "id", steps, "agreed"),))
    hello, lost, said, heard = (
        Turn(AGENT, "hello"),
        Turn(CUSTOMER, "lost"),
        Turn(CUSTOMER, "said"),
        Turn(AGENT, "heard"),
    )

    def found(*turns: Turn) -> set[Kind]:
        return kinds(check(history, [Row("id", "t", turns, "agreed", "")], {}))

    assert found(hello, said, heard) == set()
    assert found(hello, lost, Turn(AGENT, "its reply"), said, heard) == set()
    assert found(hello, said, heard, lost) == {Kind.OUT_OF_ORDER}
    assert found(hello, lost, said, heard, lost) == {Kind.DOUBLED_TURN}
    assert found(hello, lost, Turn(AGENT, "a"), Turn(AGENT, "b"), said, heard) == {Kind.INVENTED_TURN}
