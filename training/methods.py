"""The trainers that can be run side by side: who learns, with which weights, and against whom.

``bilateral`` is isolated bilateral reinforcement learning (IB-RL, arXiv 2608.06735). The two unilateral methods are
the baselines that it is to beat; self-play and the two ablations each take away one part of the isolation:

    method                       learns        adapters   agent meets
    ------------------------------------------------------------------------------------------------------
    bilateral                    both roles    two        the learning counterpart, and the pool
    unilateral-frozen            agent         one        the counterpart as it was at the start
    unilateral-scripted          agent         one        scripted customers of the training families
    self-play                    both roles    one        itself
    bilateral-shared-advantage   both roles    two        as bilateral; rewards of both roles normalised together
    bilateral-shared-adapter     both roles    one        as bilateral; one set of weights in both chairs

All spend the same number of agent dialogues and agent updates for the same settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from negotiation.roles import Role

BOTH = (Role.AGENT, Role.COUNTERPART)
Partner = Literal["learning", "mixed", "frozen", "scripted"]


class Method(StrEnum):
    """Names of the trainers, as on the command line."""

    BILATERAL = "bilateral"
    UNILATERAL_FROZEN = "unilateral-frozen"
    UNILATERAL_SCRIPTED = "unilateral-scripted"
    SELF_PLAY = "self-play"
    BILATERAL_SHARED_ADVANTAGE = "bilateral-shared-advantage"
    BILATERAL_SHARED_ADAPTER = "bilateral-shared-adapter"


@dataclass(frozen=True)
class MethodPlan:
    """``adapters``: for each learner the roles that its one adapter plays and learns from.

    ``partner``: ``learning`` the other learning role always, ``mixed`` it in a share of the groups and the pool in
    the others, ``frozen`` the counterpart of the start, ``scripted`` the pool's training families.
    """

    adapters: tuple[tuple[Role, ...], ...]
    partner: Partner
    pooled_advantage: bool = False

    @property
    def learning(self) -> tuple[Role, ...]:
        return tuple(role for roles in self.adapters for role in roles)

    @property
    def isolated(self) -> bool:
        """Whether each learning role has weights and advantages of its own."""
        return not self.pooled_advantage and all(len(roles) == 1 for roles in self.adapters)


_PLANS: dict[Method, MethodPlan] = {
    Method.BILATERAL: MethodPlan(((Role.AGENT,), (Role.COUNTERPART,)), "mixed"),
    Method.UNILATERAL_FROZEN: MethodPlan(((Role.AGENT,),), "frozen"),
    Method.UNILATERAL_SCRIPTED: MethodPlan(((Role.AGENT,),), "scripted"),
    Method.SELF_PLAY: MethodPlan((BOTH,), "learning"),
    Method.BILATERAL_SHARED_ADVANTAGE: MethodPlan(
        ((Role.AGENT,), (Role.COUNTERPART,)), "mixed", pooled_advantage=True
    ),
    Method.BILATERAL_SHARED_ADAPTER: MethodPlan((BOTH,), "mixed"),
}


def plan_of(method: Method) -> MethodPlan:
    """The plan behind a method's name."""
    return _PLANS[method]
