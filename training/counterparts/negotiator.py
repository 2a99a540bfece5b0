"""What a negotiator is: a name, a family, and a reply to the dialogue so far.

A scripted one replies by rule and is pure. A family is a proposal rule, an acceptance rule and a wording taken
together. Families for training and held-out families share none of the three. No torch here: the demo's simulated
customers use these over HTTP.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from training.counterparts.rules import FamilyRules


class Negotiator(Protocol):
    """Plays one role. ``reply`` reads the public part, its own role's view and the turns as shown."""

    name: str
    family: str
    role: Role

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        """The next message of this role. It is this role's turn and the negotiation is open."""
        ...


class ScriptedNegotiator(Negotiator, Protocol):
    """A negotiator of a family, which says by what rules it plays."""

    @property
    def rules(self) -> FamilyRules: ...


ReplyRequest = tuple[Context, NegotiationState, random.Random]


@runtime_checkable
class BatchNegotiator(Negotiator, Protocol):
    """A negotiator that answers many dialogues together, because each answer takes a while."""

    def reply_many(self, requests: Sequence[ReplyRequest]) -> list[str | Exception]:
        """One answer for each request, in their order; an exception in place of an answer that failed."""
        ...


def temper(name: str, context: Context, role: Role) -> random.Random:
    """A generator that is the same in every turn of one dialogue, for traits that must not flicker."""
    return random.Random(f"{name}:{context.seed}:{sorted(context.views.get(role, {}).items())!r}")
