"""Deal-or-NoDeal (Lewis et al. 2017, arXiv 1706.05125): two sides split a pool of books, hats and balls.

Public: how many of each item are in the pool (5 to 7 in all). Private to each side: what one of each is worth
to it; the pool is worth exactly 10 to each side, every type is worth something to at least one side and at
least one type to both. Talk ends when a side agrees; then each side states, unseen by the other, the split
that it believes was agreed (its own share). A deal counts only if the two statements add up to the pool.

Reward per role: own points / 10; no deal: 0. Success@1 is the same as a deal. Moves, always from the speaker's
own point of view: ``[propose 1 0 2]`` (what I take), ``[agree]``, ``[select 1 0 2]``, ``[select none]``, ``[quit]``.
A proposal is shown to the other side as ``[yours 0 3 0]``, what is left for it: each side reads its own share.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from negotiation.authority import AuthorityLimits, Stake
from negotiation.moves import Move, parse_message, with_move
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, NegotiationState, Outcome, ScenarioError, read_model
from negotiation.share_talk import share_overstep
from negotiation.table import require_turn, spoken_words, take_turn

ITEMS = ("book", "hat", "ball")
TOTAL_VALUE = 10
HIDDEN_STATEMENT = "[selection]"
OFFERED = "yours"
Split = tuple[int, int, int]


class Pool(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    counts: Split


class Values(BaseModel):
    """What one book, hat, ball is worth to a side."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    values: Split


def worth(values: Split, share: Split) -> int:
    """Points of a share."""
    return sum(value * count for value, count in zip(values, share, strict=True))


def remainder(counts: Split, share: Split) -> Split:
    """What is left of the pool for the other side."""
    return (counts[0] - share[0], counts[1] - share[1], counts[2] - share[2])


def splits(counts: Split) -> Iterator[Split]:
    """Every share a side could take."""
    yield from product(*(range(count + 1) for count in counts))


def pareto_optimal(counts: Split, own: Split, other: Split, share: Split) -> bool:
    """True if no split gives one side more points and the other no fewer."""
    mine, theirs = worth(own, share), worth(other, remainder(counts, share))
    for alternative in splits(counts):
        a, b = worth(own, alternative), worth(other, remainder(counts, alternative))
        if a >= mine and b >= theirs and (a > mine or b > theirs):
            return False
    return True


def check_values(counts: Split, own: Split, other: Split | None = None) -> None:
    """Raise ScenarioError where pool or values break the rules of the game."""
    if any(count < 1 for count in counts) or not 5 <= sum(counts) <= 7:
        raise ScenarioError(f"pool {counts} must hold 5 to 7 items with at least one of each type")
    for name, values in (("own", own), ("other", other)):
        if values is None:
            continue
        if any(value < 0 for value in values) or worth(values, counts) != TOTAL_VALUE:
            raise ScenarioError(
                f"{name} values {values} make the pool {counts} worth {worth(values, counts)} points, "
                f"must be exactly {TOTAL_VALUE}: change the values or the counts"
            )
    if other is not None:
        if any(a == 0 and b == 0 for a, b in zip(own, other, strict=True)):
            raise ScenarioError(f"values {own} and {other}: every type must be worth something to a side")
        if not any(a > 0 and b > 0 for a, b in zip(own, other, strict=True)):
            raise ScenarioError(f"values {own} and {other}: at least one type must be worth something to both")


@cache
def _valuations(counts: Split) -> tuple[Split, ...]:
    grid = product(range(TOTAL_VALUE + 1), repeat=3)
    return tuple(values for values in grid if worth(values, counts) == TOTAL_VALUE)  # type: ignore[arg-type,misc]


class DealOrNoDeal:
    """The scenario; stateless."""

    name: ClassVar[str] = "deal-or-no-deal"
    title: ClassVar[str] = "Deal or no deal"
    about: ClassVar[str] = (
        "Books, hats and balls are to be shared. Each is worth something else to each side: "
        "agree on a split that is worth much to you."
    )
    max_turns: ClassVar[int] = 14

    def generate(self, seed: int) -> Context:
        rng = random.Random(f"deal-or-no-deal:{seed}")
        pools: list[Split] = [c for c in product(range(1, 6), repeat=3) if 5 <= sum(c) <= 7]  # type: ignore[misc]
        counts = rng.choice([pool for pool in pools if len(_valuations(pool)) > 1])
        base = Context(
            scenario=self.name,
            seed=seed,
            first_speaker=Role.AGENT if rng.random() < 0.5 else Role.COUNTERPART,
            public=Pool(counts=counts).model_dump(mode="json"),
            views={},
        )
        candidates = list(_valuations(counts))
        rng.shuffle(candidates)
        for own in candidates:
            others = [other for other in candidates if _fits(own, other)]
            if others:
                views = {
                    Role.AGENT: Values(values=own).model_dump(mode="json"),
                    Role.COUNTERPART: Values(values=rng.choice(others)).model_dump(mode="json"),
                }
                return base.model_copy(update={"views": views})
        raise ScenarioError(f"pool {counts} admits no pair of valuations")

    def complete(self, context: Context, seed: int) -> Context:
        rng = random.Random(f"deal-or-no-deal counterpart:{seed}")
        own = self._values(context, Role.AGENT)
        others = [other for other in _valuations(self._counts(context)) if _fits(own, other)]
        if not others:
            raise ScenarioError(f"no counterpart values fit the agent's {own}: change the agent's values")
        view = Values(values=rng.choice(others)).model_dump(mode="json")
        return context.model_copy(update={"views": {**context.views, Role.COUNTERPART: view}})

    def validate(self, context: Context) -> None:
        counts, own = self._counts(context), self._values(context, Role.AGENT)
        known = Role.COUNTERPART in context.views
        check_values(counts, own, self._values(context, Role.COUNTERPART) if known else None)

    def system_prompt(self, role: Role, context: Context) -> str:
        counts, values = self._counts(context), self._values(context, role)
        parts = (f"{item} {c} value {v}" for item, c, v in zip(ITEMS, counts, values, strict=True))
        return "You split items. " + "; ".join(parts)

    def authority(self, context: Context) -> AuthorityLimits:
        return AuthorityLimits(floors=None)

    def overstep(self, context: Context, state: NegotiationState, text: str) -> str | None:
        turn = self.advance(context, state, Role.AGENT, text).turns[-1]
        counts = self._counts(context)
        own = read_share(turn.move, counts) if turn.move is not None and turn.move.kind == "propose" else None
        closes = turn.move is not None and turn.move.kind in ("agree", "select")
        parts = None if own is None else (own, remainder(counts, own))
        return share_overstep(spoken_words(turn), ITEMS, counts, parts, closes=closes)

    def harmless(self, context: Context, state: NegotiationState, sentence: str) -> bool:
        # "You may have the books" gives away without a number: here words are all about who takes what.
        return False

    def stake(self, context: Context, state: NegotiationState, move: Move) -> Stake | None:
        return None

    def begin(self, context: Context) -> NegotiationState:
        self.validate(context)
        return NegotiationState(next_speaker=context.first_speaker)

    def advance(self, context: Context, state: NegotiationState, role: Role, text: str) -> NegotiationState:
        require_turn(state, role)
        parsed = parse_message(text)
        move, rejected = parsed.move, self._illegal(context, state, parsed.move)
        selecting = _selecting(state)
        # Only the table says what is offered: a side that writes the table's mark itself is heard without it.
        heard = parsed.speech if f"[{OFFERED}" in parsed.text else None
        if rejected or (selecting and move is None):
            # A side that cannot state the split it agreed to has no deal: waiting longer would not help.
            changes: dict[str, object] = {"closed": CloseReason.STATEMENTS_DIFFER} if selecting else {}
            return take_turn(
                state,
                role,
                parsed,
                move=None,
                rejected=rejected,
                shown=heard,
                max_turns=self.max_turns,
                changes=changes,
            )
        if move is None:
            return take_turn(state, role, parsed, move=None, rejected=None, shown=heard, max_turns=self.max_turns)
        shown = None
        if move.kind == "propose":
            changes = {"standing": move, "standing_by": role}
            left = remainder(self._counts(context), read_share(move, self._counts(context)))
            shown = with_move(parsed.text, Move(kind=OFFERED, arguments=tuple(map(str, left))))
        elif move.kind == "select":
            statements = {**state.statements, role: move}
            changes = {"statements": statements, **self._compare(context, statements)}
            shown = HIDDEN_STATEMENT
        else:
            changes = {"closed": CloseReason.WALKED_AWAY} if move.kind == "quit" else {}
        limit = self.max_turns + 2 if selecting or move.kind == "agree" else self.max_turns
        return take_turn(state, role, parsed, move=move, rejected=None, shown=shown, max_turns=limit, changes=changes)

    def _illegal(self, context: Context, state: NegotiationState, move: Move | None) -> str | None:
        if move is None:
            return None
        if _selecting(state) and move.kind != "select":
            return f"{move}: talk has ended, state the split with [select B H B] or [select none]"
        if move.kind == "select":
            if not _selecting(state):
                return f"{move} is only for after an agreement: use [agree] first"
            if move.arguments == ("none",):
                return None
        if move.kind in ("propose", "select"):
            try:
                read_share(move, self._counts(context))
            except ValueError as error:
                return str(error)
            return None
        if move.kind not in ("agree", "quit"):
            return f"{move} is no move of {self.name}: use [propose B H B], [agree], [select B H B] or [quit]"
        return f"{move} takes no arguments" if move.arguments else None

    def _compare(self, context: Context, statements: dict[Role, Move]) -> dict[str, object]:
        if len(statements) < 2:
            return {}
        mine, theirs = statements[Role.AGENT], statements[Role.COUNTERPART]
        none = ("none",)
        if mine.arguments == none or theirs.arguments == none:
            same = mine.arguments == theirs.arguments
            return {"closed": CloseReason.WALKED_AWAY if same else CloseReason.STATEMENTS_DIFFER}
        counts = self._counts(context)
        if remainder(counts, read_share(mine, counts)) == read_share(theirs, counts):
            return {"closed": CloseReason.AGREED, "agreement": mine}
        return {"closed": CloseReason.STATEMENTS_DIFFER}

    def outcome(self, context: Context, state: NegotiationState) -> Outcome:
        if state.closed is None:
            raise ValueError("the negotiation is still open: no outcome yet")
        counts = self._counts(context)
        own, other = self._values(context, Role.AGENT), self._values(context, Role.COUNTERPART)
        if state.agreement is None:
            zero = {Role.AGENT: 0.0, Role.COUNTERPART: 0.0}
            return Outcome(agreed=False, success=False, rewards=zero, points=zero, detail=str(state.closed))
        share = read_share(state.agreement, counts)
        points = {Role.AGENT: worth(own, share), Role.COUNTERPART: worth(other, remainder(counts, share))}
        return Outcome(
            agreed=True,
            success=True,
            rewards={role: value / TOTAL_VALUE for role, value in points.items()},
            points={role: float(value) for role, value in points.items()},
            pareto_optimal=pareto_optimal(counts, own, other, share),
            detail="deal",
        )

    def _counts(self, context: Context) -> Split:
        return read_model(Pool, context.public, "public").counts

    def _values(self, context: Context, role: Role) -> Split:
        return read_model(Values, context.views.get(role), f"views.{role}").values


def read_share(move: Move, counts: Split) -> Split:
    """The share that a propose or select move names. Raises ValueError if it does not fit the pool."""
    if len(move.arguments) != 3 or not all(a.isascii() and a.isdigit() and len(a) < 3 for a in move.arguments):
        raise ValueError(f"{move} needs three whole numbers: how many of {', '.join(ITEMS)}")
    share = (int(move.arguments[0]), int(move.arguments[1]), int(move.arguments[2]))
    if any(taken > count for taken, count in zip(share, counts, strict=True)):
        raise ValueError(f"{move} takes more than the pool {counts} holds")
    return share


def _selecting(state: NegotiationState) -> bool:
    return any(turn.move is not None and turn.move.kind == "agree" for turn in state.turns[-2:]) or bool(
        state.statements
    )


def _fits(own: Split, other: Split) -> bool:
    pairs = list(zip(own, other, strict=True))
    return all(a > 0 or b > 0 for a, b in pairs) and any(a > 0 and b > 0 for a, b in pairs)
