"""Readers of the two Deal-or-NoDeal corpus formats (Lewis et al. 2017, arXiv 1706.05125).

Pure: they take lines, whoever opened the file, and stream. The corpus itself (CC BY-NC 4.0) is not part of this
project; the user names a path. A malformed line is an error, not a skip: a silently shorter corpus would give
plausible and wrong figures.

``dialogues.txt``, one line per dialogue *and side* (this side is ``YOU``)::

    1 4 4 1 1 2 YOU: the book for me <eos> THEM: fine <eos> YOU: <selection> item0=1 item1=0 item2=0 <eos> \
reward=4 agree 1 10 4 0 1 0

``count value`` for book, hat and ball as this side sees it, utterances, this side's statement of the split (its
own share, ``no agreement`` or ``disconnect``), its points, whether both statements match, and the other side's
``count value``. The points after ``disagree`` are what the statement was worth, not what was earned.

``contexts.txt``, two consecutive lines a scenario, one per side: ``count value`` for book, hat and ball.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from negotiation.deal_or_no_deal import (
    ITEMS,
    DealOrNoDeal,
    Pool,
    Split,
    Values,
    check_values,
    pareto_optimal,
    remainder,
    worth,
)
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, ScenarioError

_SPEAKERS = {"YOU": Role.AGENT, "THEM": Role.COUNTERPART}
_EOS = "<eos>"
_SELECTION = "<selection>"
_NO_SPLIT = ("no agreement", "disconnect")
_SHARE = re.compile(r"item0=(\d{1,2}) item1=(\d{1,2}) item2=(\d{1,2})")
_VERDICT = re.compile(r"reward=(\d{1,2}|no agreement|disconnect) (agree|disagree)")


class CorpusError(ValueError):
    """A corpus line that does not follow its format. Names the source, the line and the value."""

    def __init__(self, source: str, line: int, problem: str) -> None:
        super().__init__(f"{source}:{line}: {problem}")
        self.source, self.line, self.problem = source, line, problem


@dataclass(frozen=True)
class Utterance:
    """One message; the line's own side speaks as the agent."""

    role: Role
    text: str


@dataclass(frozen=True)
class CorpusDialogue:
    """One line of ``dialogues.txt``: a dialogue seen from one side, which sits in the agent's chair.

    ``share`` is the split this side stated (its own share) or None where it stated none; ``selection`` is that
    statement as written. ``agree`` says whether both sides' statements match.
    """

    source: str
    line: int
    counts: Split
    own: Split
    other: Split
    utterances: tuple[Utterance, ...]
    selection: str
    share: Split | None
    agree: bool

    @property
    def deal(self) -> bool:
        return self.agree and self.share is not None

    @property
    def closed(self) -> CloseReason:
        """A deal, two matching statements of none, two that differ, or (unmatched) a side that left."""
        if self.agree:
            return CloseReason.WALKED_AWAY if self.share is None else CloseReason.AGREED
        return CloseReason.ABANDONED if self.selection == "disconnect" else CloseReason.STATEMENTS_DIFFER

    @property
    def points(self) -> dict[Role, int]:
        """Points of both sides: what the agreed shares are worth, 0 without a deal."""
        if self.share is None or not self.agree:
            return {Role.AGENT: 0, Role.COUNTERPART: 0}
        rest = remainder(self.counts, self.share)
        return {Role.AGENT: worth(self.own, self.share), Role.COUNTERPART: worth(self.other, rest)}

    @property
    def pareto_optimal(self) -> bool | None:
        """Whether no split would have been better for one side and no worse for the other; None without a deal."""
        if self.share is None or not self.agree:
            return None
        return pareto_optimal(self.counts, self.own, self.other, self.share)

    def context(self) -> Context:
        """Both sides' views, this side as the agent."""
        first = self.utterances[0].role if self.utterances else Role.AGENT
        return _context(self.counts, self.own, self.other, first)


def read_dialogues(lines: Iterable[str], source: str) -> Iterator[CorpusDialogue]:
    """Stream ``dialogues.txt``. Blank lines are passed over; raises CorpusError at the first malformed one."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _Line(source, number).dialogue(line)


def read_contexts(lines: Iterable[str], source: str) -> Iterator[Context]:
    """Stream ``contexts.txt``: each pair of lines is one context with both views, the first line's as the agent.

    Raises CorpusError for a malformed line, a pair whose counts differ, or a last line without its pair.
    """
    waiting: tuple[int, Split, Split] | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        here = _Line(source, number)
        counts, values = here.counts_and_values(line.split())
        if waiting is None:
            here.check(counts, values)
            waiting = (number, counts, values)
            continue
        first, first_counts, own = waiting
        if counts != first_counts:
            here.fail(f"counts {counts} differ from {first_counts} on line {first}, the same scenario's other side")
        here.check(counts, own, values)
        waiting = None
        yield _context(counts, own, values, Role.AGENT)
    if waiting is not None:
        raise CorpusError(source, waiting[0], "the last line has no pair: a scenario is two lines, one per side")


def _context(counts: Split, own: Split, other: Split, first: Role) -> Context:
    return Context(
        scenario=DealOrNoDeal.name,
        first_speaker=first,
        public=Pool(counts=counts).model_dump(mode="json"),
        views={
            Role.AGENT: Values(values=own).model_dump(mode="json"),
            Role.COUNTERPART: Values(values=other).model_dump(mode="json"),
        },
    )


@dataclass(frozen=True)
class _Line:
    """Where we are, so that every complaint can say it."""

    source: str
    number: int

    def fail(self, problem: str) -> NoReturn:
        raise CorpusError(self.source, self.number, problem)

    def check(self, counts: Split, own: Split, other: Split | None = None) -> None:
        try:
            check_values(counts, own, other)
        except ScenarioError as error:
            raise CorpusError(self.source, self.number, str(error)) from error

    def counts_and_values(self, words: list[str]) -> tuple[Split, Split]:
        if len(words) != 2 * len(ITEMS):
            self.fail(f"expected six numbers, `count value` for {', '.join(ITEMS)}, got {' '.join(words)!r}")
        for word in words:
            if not (word.isascii() and word.isdigit() and len(word) < 3):
                self.fail(f"{word!r} in {' '.join(words)!r} is not a whole number from 0 to 99")
        numbers = [int(word) for word in words]
        counts, values = numbers[0::2], numbers[1::2]
        return (counts[0], counts[1], counts[2]), (values[0], values[1], values[2])

    def dialogue(self, line: str) -> CorpusDialogue:
        words = line.split()
        if len(words) < 12:
            self.fail(f"{len(words)} words, too few for two sides' `count value` lists: {line.strip()[:80]!r}")
        counts, own = self.counts_and_values(words[:6])
        other_counts, other = self.counts_and_values(words[-6:])
        if other_counts != counts:
            self.fail(f"this side counts {counts} and the other {other_counts}: both see the same pool")
        self.check(counts, own, other)
        *said, statement, verdict = self._pieces(words[6:-6])
        utterances = tuple(self._utterance(piece) for piece in said)
        for one, two in pairwise(utterances):
            if one.role is two.role:
                self.fail(f"two messages in a row by one side; the second is {two.text[:60]!r}")
        selection = self._selection(statement)
        share = self._share(selection, counts)
        return CorpusDialogue(
            source=self.source,
            line=self.number,
            counts=counts,
            own=own,
            other=other,
            utterances=utterances,
            selection=selection,
            share=share,
            agree=self._verdict(verdict, selection, share, own),
        )

    def _pieces(self, words: list[str]) -> list[str]:
        pieces = [piece.strip() for piece in " ".join(words).split(_EOS)]
        if len(pieces) < 2:
            self.fail(f"no {_EOS} between the dialogue and its result: {' '.join(words)[:80]!r}")
        return pieces

    def _utterance(self, piece: str) -> Utterance:
        speaker, colon, text = piece.partition(":")
        if not colon or speaker not in _SPEAKERS:
            self.fail(f"{piece[:60]!r} does not begin with YOU: or THEM:")
        if not text.strip():
            self.fail(f"{speaker}: is followed by no words")
        return Utterance(role=_SPEAKERS[speaker], text=text.strip())

    def _selection(self, piece: str) -> str:
        speaker, _, text = piece.partition(":")
        tag, _, selection = text.strip().partition(" ")
        if speaker not in _SPEAKERS or tag != _SELECTION:
            self.fail(f"expected `YOU: {_SELECTION} ...` before the result, got {piece[:60]!r}")
        return selection.strip()

    def _share(self, selection: str, counts: Split) -> Split | None:
        if selection in _NO_SPLIT:
            return None
        match = _SHARE.fullmatch(selection)
        if not match:
            self.fail(
                f"selection {selection[:60]!r} is neither `item0=N item1=N item2=N` nor one of {', '.join(_NO_SPLIT)}"
            )
        share = (int(match[1]), int(match[2]), int(match[3]))
        if any(taken > count for taken, count in zip(share, counts, strict=True)):
            self.fail(f"selection {selection!r} takes more than the pool {counts} holds")
        return share

    def _verdict(self, piece: str, selection: str, share: Split | None, own: Split) -> bool:
        match = _VERDICT.fullmatch(piece)
        if not match:
            self.fail(f"result {piece[:60]!r} is not `reward=N agree`, `reward=no agreement disagree` or the like")
        reward, verdict = match[1], match[2]
        expected = selection if share is None else str(worth(own, share))
        if reward != expected:
            self.fail(f"reward={reward} does not follow from the selection {selection!r}, which gives {expected}")
        return verdict == "agree"
