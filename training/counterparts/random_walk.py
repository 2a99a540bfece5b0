"""Players whose limit wanders, for choosing checkpoints and watching a run's health.

They neither teach nor judge: a checkpoint that was chosen on a held-out family would flatter itself there. Their
sentences are long on purpose, for a policy that reads only short ones shows it here first.
"""

from __future__ import annotations

import random

from negotiation.deal_or_no_deal import ITEMS, Split
from negotiation.telesales import GRID
from training.counterparts.deal_negotiators import DealPlayer, DealWording, Table, both_roles
from training.counterparts.telesales_customers import Bargain, ScriptedCustomer, Wording

VERBOSE = Wording(
    greet=("Good day to you, you are calling me at a good time.",),
    need=(
        "After all this time I can say that what I would like to have is {a_need}.",
        "What I have been looking at for a long time is, all in all, {a_need}.",
    ),
    unsuitable=("That one may be good too, but what I have in mind is {a_need}.",),
    ask_concern=("Before that is done I would like to know all about the {concern}.",),
    expensive=("The way I see it now that is a lot, and I may see it otherwise later.",),
    bid=(
        "As I see it now, and later I may see it otherwise, it is worth {price} to me.",
        "For the time being what I would say that it is worth to me is {price}.",
    ),
    accept=("All in all, and before I see it otherwise again, we have a deal.",),
    quit=("I can not say what I need any more, so let us leave it at that.",),
)
WAVERING = DealWording(
    propose=(
        "For the time being I would say that {items} is for me.",
        "All in all, and for now, what I would take is {items}.",
    ),
    agree=("As I see it now, what you want is good for me too.",),
    quit=("I can not say what I want any more, so let us leave it at that.",),
)


class RandomWalkCustomer(ScriptedCustomer):
    """What it would pay takes a random step, up or down, each time that the agent speaks."""

    def limit(self, bargain: Bargain) -> float:
        """The present limit in major units, never over the budget."""
        # The walk hangs on the customer alone, so that it is the same one whoever asks, and however often.
        walk = random.Random(f"{self.name}:{bargain.view.model_dump_json()}")
        share = walk.uniform(0.84, 0.96)
        for _ in range(bargain.agent_turns):
            share = min(1.0, max(0.78, share + walk.uniform(-0.05, 0.08)))
        return bargain.budget * share

    def accepts(self, bargain: Bargain, traits: random.Random) -> bool:
        return bargain.ask is not None and bargain.ask <= self.limit(bargain)

    def bid(self, bargain: Bargain, traits: random.Random) -> int | None:
        # A step down after a step up: the bids of this customer need not rise.
        return int(0.95 * self.limit(bargain) // GRID) * GRID if bargain.agent_turns % 3 else None


class RandomWalkPlayer(DealPlayer):
    """Walks over shares one item at a time, and takes what a limit that wanders by itself allows."""

    least = 4

    def _walk(self, table: Table, what: str) -> random.Random:
        return random.Random(f"{self.name}:{what}:{table.counts}:{table.values}")

    def accepts(self, table: Table, share: Split, traits: random.Random) -> bool:
        walk = self._walk(table, "limit")
        limit = walk.randint(5, 7)
        for _ in range(table.spoken):
            limit = min(8, max(self.least, limit + walk.choice((-2, -1, -1, 0, 1))))
        return table.worth(share) >= limit

    def propose(self, table: Table, traits: random.Random) -> Split:
        walk = self._walk(table, "shares")
        first = [count if value else 0 for count, value in zip(table.counts, table.values, strict=True)]
        share: Split = (first[0], first[1], first[2])
        for _ in range(table.spoken):
            steps = [one for one in _neighbours(share, table.counts) if table.worth(one) > self.least]
            share = walk.choice(steps) if steps else share
        return share


def _neighbours(share: Split, counts: Split) -> list[Split]:
    """The shares that differ by one item; giving up comes twice, so that the walk leans towards the other side."""
    found: list[Split] = []
    for item in range(len(ITEMS)):
        for step in (-1, -1, 1):
            if 0 <= share[item] + step <= counts[item]:
                changed = [n + step if at == item else n for at, n in enumerate(share)]
                found.append((changed[0], changed[1], changed[2]))
    return found


CUSTOMERS: tuple[ScriptedCustomer, ...] = (RandomWalkCustomer("random-walk", "random-walk", VERBOSE),)
PLAYERS: tuple[DealPlayer, ...] = both_roles(RandomWalkPlayer, "random-walk", WAVERING, patience=6)
