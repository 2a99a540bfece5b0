"""Whether a dataset agrees with what clients saw: the judge of the fault runs, pure and without I/O.

A :class:`History` holds what HTTP clients were answered, and apart from it what they never learned the outcome of.
:func:`check` compares it with the rows of the dataset. Every text of a history is said once in a whole run, so a
turn is known by its words. Left out on purpose: times, which a skewed clock may say anything about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

AGENT, CUSTOMER = "agent", "counterpart"
UNTOLD = "untold"
"""Why a conversation closed, where its client only learned that it is closed."""


class Turn(NamedTuple):
    role: str
    shown: str


class Fate(StrEnum):
    """What a client knows of a request. UNKNOWN: it was sent, and no answer came."""

    NOT_ASKED = "not_asked"
    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"


@dataclass(frozen=True)
class Step:
    """One request that makes turns. ``said`` is None for an opening, ``heard`` where no reply came or is known."""

    said: str | None
    heard: str | None
    fate: Fate = Fate.ACKNOWLEDGED

    def turns(self) -> list[Turn]:
        said = [] if self.said is None else [Turn(CUSTOMER, self.said)]
        return said + ([] if self.heard is None else [Turn(AGENT, self.heard)])


@dataclass
class Talk:
    """One conversation as its client knows it, named by its label. ``id`` is None while no opening was answered.

    ``closed``: the reason that was answered, :data:`UNTOLD`, or None while it is not known to be closed. ``note`` is
    that of the one outcome report.
    """

    name: str
    id: str | None = None
    steps: list[Step] = field(default_factory=list)
    closed: str | None = None
    outcome: Fate = Fate.NOT_ASKED
    note: str | None = None
    erasure: Fate = Fate.NOT_ASKED

    @property
    def may_be_closed(self) -> bool:
        """Known to be closed, or closed by a request whose outcome nobody knows."""
        return self.closed is not None or any(step.fate is Fate.UNKNOWN for step in self.steps)

    def acknowledged(self) -> list[Turn]:
        return [turn for step in self.steps if step.fate is Fate.ACKNOWLEDGED for turn in step.turns()]


@dataclass(frozen=True)
class History:
    talks: tuple[Talk, ...]

    def turns(self) -> int:
        """Acknowledged turns."""
        return sum(len(talk.acknowledged()) for talk in self.talks)

    def owed(self) -> dict[str, Talk]:
        """By id: what must be in the dataset once everything is written."""
        return {
            talk.id: talk
            for talk in self.talks
            if talk.id is not None and talk.closed is not None and talk.erasure is Fate.NOT_ASKED
        }


@dataclass(frozen=True)
class Row:
    """What the check needs of a row of the dataset."""

    id: str
    name: str | None
    turns: tuple[Turn, ...]
    closed: str
    note: str


class Kind(StrEnum):
    MISSING_CONVERSATION = "missing_conversation"
    DOUBLED_CONVERSATION = "doubled_conversation"
    INVENTED_CONVERSATION = "invented_conversation"
    ERASED_PRESENT = "erased_present"
    MISSING_TURN = "missing_turn"
    DOUBLED_TURN = "doubled_turn"
    INVENTED_TURN = "invented_turn"
    OUT_OF_ORDER = "out_of_order"
    WRONG_ENDING = "wrong_ending"
    MISSING_OUTCOME = "missing_outcome"
    WRONG_OUTCOME = "wrong_outcome"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True)
class Violation:
    """``where``: the conversation, or the reason of a dead letter. ``what``: the offending turn or value."""

    kind: Kind
    where: str
    what: str = ""


def check(history: History, rows: Iterable[Row], dead_letters: Mapping[str, int]) -> list[Violation]:
    """All violations. ``dead_letters``: how many by reason; in these runs nobody sends what can not be read."""
    rows = list(rows)
    known = {talk.id: talk for talk in history.talks if talk.id is not None}
    found = [Violation(Kind.DEAD_LETTER, reason, str(count)) for reason, count in dead_letters.items() if count]
    counts = Counter(row.id for row in rows)
    found += [Violation(Kind.DOUBLED_CONVERSATION, id, str(count)) for id, count in counts.items() if count > 1]
    found += [Violation(Kind.MISSING_CONVERSATION, id) for id in history.owed() if id not in counts]
    for row in {row.id: row for row in rows}.values():
        talk = known.get(row.id)
        if talk is None or talk.name != row.name or not talk.may_be_closed:
            found.append(Violation(Kind.INVENTED_CONVERSATION, row.id, str(row.name)))
        elif talk.erasure is Fate.ACKNOWLEDGED:
            found.append(Violation(Kind.ERASED_PRESENT, row.id))
        else:
            found += [*_turns(talk, row), *_ending(talk, row)]
    return found


def _turns(talk: Talk, row: Row) -> list[Violation]:
    places = {turn: place for place, turn in enumerate(turn for step in talk.steps for turn in step.turns())}
    doubled = [turn for turn, count in Counter(row.turns).items() if count > 1]
    found = [Violation(Kind.DOUBLED_TURN, row.id, str(turn)) for turn in doubled]
    missing = [turn for turn in talk.acknowledged() if turn not in row.turns]
    found += [Violation(Kind.MISSING_TURN, row.id, str(turn)) for turn in missing]
    found += [Violation(Kind.INVENTED_TURN, row.id, str(turn)) for turn in _invented(talk, row.turns)]
    known = [places[turn] for turn in dict.fromkeys(row.turns) if turn in places]
    if known != sorted(known):
        found.append(Violation(Kind.OUT_OF_ORDER, row.id, str(known)))
    return found


def _invented(talk: Talk, turns: Sequence[Turn]) -> list[Turn]:
    known = {turn for step in talk.steps for turn in step.turns()}
    unknown = {turn for step in talk.steps if step.fate is Fate.UNKNOWN for turn in step.turns()}
    invented: list[Turn] = []
    before: Turn | None = None
    for turn in turns:
        # Nobody was told the reply to a request of unknown outcome: one, right behind it, is as it should be.
        if turn not in known and not (turn.role == AGENT and before in unknown):
            invented.append(turn)
        before = turn
    return invented


def _ending(talk: Talk, row: Row) -> list[Violation]:
    found = []
    if talk.closed not in (None, UNTOLD, row.closed):
        found.append(Violation(Kind.WRONG_ENDING, row.id, f"{row.closed}, answered was {talk.closed}"))
    if talk.outcome is Fate.ACKNOWLEDGED and row.note == "":
        found.append(Violation(Kind.MISSING_OUTCOME, row.id, str(talk.note)))
    elif row.note not in ("", talk.note):
        found.append(Violation(Kind.WRONG_OUTCOME, row.id, row.note))
    return found
