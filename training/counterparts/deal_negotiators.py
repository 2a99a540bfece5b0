"""Scripted players of Deal-or-NoDeal, for either role.

Training families aspire to a number of points that falls with time (conceder, boulware). Held-out families
propose, accept and speak otherwise: a fair splitter that minds what the other asks for, a mirror that gives
as much as it is given, and a taker of anything past a fixed line.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from negotiation.deal_or_no_deal import ITEMS, Pool, Split, Values, read_share, remainder, splits, worth
from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from training.counterparts.negotiator import temper
from training.counterparts.rules import FamilyRules, family_rules


@dataclass(frozen=True)
class DealWording:
    """What a family says; ``{items}`` is a share in words."""

    propose: Sequence[str]
    agree: Sequence[str]
    quit: Sequence[str]


PLAIN = DealWording(
    propose=("I would like {items}.", "Can I have {items}?", "I want {items}, you get the rest."),
    agree=("Deal.", "Okay, that works."),
    quit=("No deal then.",),
)
FORMAL = DealWording(
    propose=("Fair would be {items} for my side.",), agree=("That is fair, agreed.",), quit=("Let us leave it.",)
)
CHATTY = DealWording(
    propose=("Hmm, my kids fancy {items}, how about it?",),
    agree=("Great, shake on it!",),
    quit=("Sorry, my kids would cry.",),
)
TERSE = DealWording(propose=("{items}.",), agree=("Yes.",), quit=("No.",))


@dataclass(frozen=True)
class Table:
    """What a player knows at its turn; shares are its own unless named otherwise."""

    counts: Split
    values: Split
    spoken: int
    proposed: tuple[Split, ...]
    received: tuple[Split, ...]

    def worth(self, share: Split) -> int:
        return worth(self.values, share)


class DealPlayer(ABC):
    """The shared course of a game; families fill in acceptance and proposal."""

    def __init__(self, family: str, role: Role, wording: DealWording, patience: int) -> None:
        self.name, self.family, self.role = f"{family}-{role}", family, role
        self.wording, self.patience = wording, patience

    @property
    def rules(self) -> FamilyRules:
        return family_rules(proposal=type(self).propose, acceptance=type(self).accepts, wording=self.wording)

    @abstractmethod
    def accepts(self, table: Table, share: Split, traits: random.Random) -> bool:
        """Whether to agree to the share that the other side's last proposal leaves us."""

    @abstractmethod
    def propose(self, table: Table, traits: random.Random) -> Split:
        """The share to ask for."""

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        if any(turn.move is not None and turn.move.kind == "agree" for turn in state.turns):
            return state_split(context, state, self.role)
        table = read_table(context, state, self.role)
        received = table.received
        traits = temper(self.name, context, self.role)
        if received and state.standing_by is self.role.other and self.accepts(table, received[-1], traits):
            return f"{rng.choice(self.wording.agree)} [agree]"
        if table.spoken >= self.patience:
            return f"{rng.choice(self.wording.quit)} [quit]"
        share = self.propose(table, traits)
        words = rng.choice(self.wording.propose).format(items=in_words(share))
        return f"{words} {proposal(share)}"


def state_split(context: Context, state: NegotiationState, role: Role) -> str:
    """Talk is over: the role's share of what was last proposed, stated honestly."""
    if state.standing is None:
        return "[select none]"
    counts = Pool.model_validate(context.public).counts
    share = read_share(state.standing, counts)
    if state.standing_by is not role:
        share = remainder(counts, share)
    return str(Move(kind="select", arguments=tuple(map(str, share))))


class AspiringPlayer(DealPlayer):
    """Wants ``start`` points and comes down to ``least`` along time ** power; random among shares worth as much."""

    def __init__(
        self, family: str, role: Role, wording: DealWording, *, start: int, least: int, power: float, patience: int
    ) -> None:
        super().__init__(family, role, wording, patience)
        self.start, self.least, self.power = start, least, power

    def _aspiration(self, table: Table) -> float:
        elapsed = min(1.0, table.spoken / max(1, self.patience - 1))
        return self.start - (self.start - self.least) * elapsed**self.power

    def accepts(self, table: Table, share: Split, traits: random.Random) -> bool:
        return table.worth(share) >= self._aspiration(table)

    def propose(self, table: Table, traits: random.Random) -> Split:
        aspiration = self._aspiration(table)
        enough = [share for share in splits(table.counts) if table.worth(share) >= aspiration]
        worth_least = min(table.worth(share) for share in enough)
        choices = [share for share in enough if table.worth(share) <= worth_least + 1 and share not in table.proposed]
        return traits.choice(choices or enough)


class FairPlayer(DealPlayer):
    """Gives away what the other keeps asking for and it values least; agrees to half of the points or more."""

    def accepts(self, table: Table, share: Split, traits: random.Random) -> bool:
        return table.worth(share) >= 5

    def propose(self, table: Table, traits: random.Random) -> Split:
        asked = [sum(remainder(table.counts, share)[item] for share in table.received) for item in range(len(ITEMS))]

        def cost(share: Split) -> float:
            return sum(kept * asked[item] for item, kept in enumerate(share)) / (1 + len(table.received))

        enough = [share for share in splits(table.counts) if 6 <= table.worth(share) <= 8] or list(
            splits(table.counts)
        )
        return min(enough, key=lambda share: (cost(share), sum(share), share))


class MirrorPlayer(DealPlayer):
    """Asks for everything it values, then gives one point for each point that the other has given."""

    def _entitled(self, table: Table) -> int:
        if not table.received:
            return 9
        offers = [table.worth(share) for share in table.received]
        return max(4, 9 - max(0, max(offers) - offers[0]) - table.spoken // 2)

    def accepts(self, table: Table, share: Split, traits: random.Random) -> bool:
        return table.worth(share) >= self._entitled(table) - 1

    def propose(self, table: Table, traits: random.Random) -> Split:
        entitled = self._entitled(table)
        enough = [share for share in splits(table.counts) if table.worth(share) >= entitled]
        return min(enough, key=lambda share: (sum(share), share))


class LinePlayer(DealPlayer):
    """Repeats one demand and takes anything past a fixed line of its own."""

    def accepts(self, table: Table, share: Split, traits: random.Random) -> bool:
        return table.worth(share) >= traits.choice((4, 5, 6))

    def propose(self, table: Table, traits: random.Random) -> Split:
        line = traits.choice((4, 5, 6)) + 2
        enough = [share for share in splits(table.counts) if table.worth(share) >= line]
        return min(enough, key=lambda share: (table.worth(share), sum(share), share))


def read_table(context: Context, state: NegotiationState, role: Role) -> Table:
    """What the turns so far put before ``role``."""
    counts = Pool.model_validate(context.public).counts
    values = Values.model_validate(context.views[role]).values
    mine, theirs = (
        tuple(
            read_share(turn.move, counts)
            for turn in state.turns
            if turn.role is side and turn.move is not None and turn.move.kind == "propose"
        )
        for side in (role, role.other)
    )
    received = tuple(remainder(counts, share) for share in theirs)
    return Table(counts, values, state.turns_by(role), mine, received)


def proposal(share: Split) -> Move:
    """The move that asks for a share."""
    return Move(kind="propose", arguments=tuple(map(str, share)))


def in_words(share: Split) -> str:
    """``(1, 0, 2)`` becomes ``1 book and 2 balls``; nothing at all is ``nothing``."""
    parts = [f"{n} {item}{'s' if n > 1 else ''}" for n, item in zip(share, ITEMS, strict=True) if n]
    return " and ".join(parts) or "nothing"


def both_roles(make: type[DealPlayer], family: str, wording: DealWording, **options: float) -> tuple[DealPlayer, ...]:
    """A family's two players, one for each role."""
    return tuple(make(family, role, wording, **options) for role in Role)  # type: ignore[arg-type]


TRAINING: tuple[DealPlayer, ...] = (
    *both_roles(AspiringPlayer, "aspiring-conceder", PLAIN, start=9, least=4, power=0.8, patience=6),
    *both_roles(AspiringPlayer, "aspiring-boulware", PLAIN, start=9, least=5, power=2.0, patience=6),
)
HELD_OUT: tuple[DealPlayer, ...] = (
    *both_roles(FairPlayer, "fair", FORMAL, patience=6),
    *both_roles(MirrorPlayer, "mirror", CHATTY, patience=6),
    *both_roles(LinePlayer, "line", TERSE, patience=5),
)
