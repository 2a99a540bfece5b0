"""A policy that says yes to everything: what agreement alone is worth.

It agrees to any offer at the first chance and makes none of its own, except where nothing would ever lie on the
table: then it makes one opening that costs no thought. In Deal-or-NoDeal it asks for nothing; as a seller it names
the first vehicle of the stock at its list price; as a customer it only speaks. A learned policy that is no better
than this one in own reward has learned to agree, not to negotiate.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from negotiation.telesales import Stock, VehicleTelesales, offer
from training.counterparts import Negotiator
from training.counterparts.deal_negotiators import state_split

NAME = "accept-everything"


@dataclass
class AcceptingCaller:
    """Vehicle telesales, either role. An acceptance that authority blocked is not tried again on the same offer."""

    role: Role
    name: str = NAME
    family: str = NAME

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        if state.standing is None:
            if self.role is Role.COUNTERPART:
                return "Hello."
            first = Stock.model_validate(context.public).vehicles[0]
            return f"Hello. {offer(first.id, first.list_price)}"
        if state.standing_by is self.role or self._was_refused(state):
            return "As you like."
        return "Yes. [accept]"

    def _was_refused(self, state: NegotiationState) -> bool:
        """Whether this offer was accepted already, in vain: the last move was theirs, and we answered it."""
        made = max(number for number, turn in enumerate(state.turns) if turn.move == state.standing)
        return any(turn.role is self.role and turn.blocked for turn in state.turns[made + 1 :])


@dataclass
class AcceptingSplitter:
    """Deal-or-NoDeal, either role. After an agreement it states the split that was agreed."""

    role: Role
    name: str = NAME
    family: str = NAME

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        if any(turn.move is not None and turn.move.kind == "agree" for turn in state.turns):
            return state_split(context, state, self.role)
        if state.standing is None:
            return "Take it all. [propose 0 0 0]"
        return "As you like." if state.standing_by is self.role else "Yes. [agree]"


def accept_everything(scenario: str, role: Role) -> Negotiator:
    """The policy in a chair. Raises ValueError for a scenario that has none."""
    if scenario == VehicleTelesales.name:
        return AcceptingCaller(role)
    if scenario == DealOrNoDeal.name:
        return AcceptingSplitter(role)
    raise ValueError(
        f"no accept-everything policy for scenario {scenario!r}: it is written for {VehicleTelesales.name} and "
        f"{DealOrNoDeal.name}; add one to training/accept_everything.py"
    )
