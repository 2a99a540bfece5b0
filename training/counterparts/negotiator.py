"""What a scripted negotiator is: a name, a family, and a pure reply rule.

A family is a proposal rule, an acceptance rule and a wording taken together. Families for training and held-out
families share none of the three. No torch here: the demo's simulated customers use these over HTTP.
"""

from __future__ import annotations

import random
from typing import Protocol

from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState


class Negotiator(Protocol):
    """Plays one role by rule. ``reply`` reads the public part, its own role's view and the turns as shown."""

    name: str
    family: str
    role: Role

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        """The next message of this role. It is this role's turn and the negotiation is open."""
        ...


def temper(name: str, context: Context, role: Role) -> random.Random:
    """A generator that is the same in every turn of one dialogue, for traits that must not flicker."""
    return random.Random(f"{name}:{context.seed}:{sorted(context.views.get(role, {}).items())!r}")
