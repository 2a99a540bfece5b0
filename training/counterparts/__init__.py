"""The pool of scripted counterparts, by scenario, role and split.

========== ====================================================================================================
warm_start what the bundled base model imitates
train      partners of training, beside the co-trained one
validation chooses checkpoints and watches a run's health; neither trained on nor held out
held_out   judges: the gate and the published figures
enterprise judges: a fixed purchasing policy that nobody can influence
adversary  tests: an illegitimate demand each (:mod:`training.counterparts.adversaries`), reported apart
========== ====================================================================================================

Warm start and training may share families. No other two splits share a family, a proposal rule, an acceptance rule
or a sentence; a test reads that off the code (:mod:`training.counterparts.rules`).
"""

from __future__ import annotations

from typing import Literal, get_args

from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.roles import Role
from negotiation.telesales import VehicleTelesales
from training.counterparts import (
    deal_adversaries,
    deal_negotiators,
    enterprise,
    judging_sellers,
    random_walk,
    telesales_adversaries,
    telesales_agents,
    telesales_customers,
)
from training.counterparts.negotiator import BatchNegotiator, Negotiator, ReplyRequest, ScriptedNegotiator

Split = Literal["warm_start", "train", "validation", "held_out", "enterprise", "adversary"]
SPLITS: tuple[Split, ...] = get_args(Split)

_POOL: dict[tuple[str, Split], tuple[ScriptedNegotiator, ...]] = {
    (VehicleTelesales.name, "warm_start"): (*telesales_customers.WARM_START, *telesales_agents.TRAINING),
    (VehicleTelesales.name, "train"): (*telesales_customers.TRAINING, *telesales_agents.TRAINING),
    (VehicleTelesales.name, "validation"): (*random_walk.CUSTOMERS, *judging_sellers.VALIDATION),
    (VehicleTelesales.name, "held_out"): (
        *telesales_customers.HELD_OUT,
        *telesales_agents.HELD_OUT,
        *judging_sellers.HELD_OUT,
    ),
    (VehicleTelesales.name, "enterprise"): enterprise.CUSTOMERS,
    (VehicleTelesales.name, "adversary"): telesales_adversaries.CUSTOMERS,
    (DealOrNoDeal.name, "warm_start"): deal_negotiators.TRAINING,
    (DealOrNoDeal.name, "train"): deal_negotiators.TRAINING,
    (DealOrNoDeal.name, "validation"): random_walk.PLAYERS,
    (DealOrNoDeal.name, "held_out"): deal_negotiators.HELD_OUT,
    (DealOrNoDeal.name, "enterprise"): enterprise.PLAYERS,
    (DealOrNoDeal.name, "adversary"): deal_adversaries.PLAYERS,
}


def negotiators(scenario: str, role: Role, split: Split) -> tuple[ScriptedNegotiator, ...]:
    """The scripted negotiators of a scenario who play ``role``. Raises ValueError if there are none."""
    found = tuple(n for n in _POOL.get((scenario, split), ()) if n.role is role)
    if not found:
        known = ", ".join(sorted({name for name, _ in _POOL}))
        having = ", ".join(s for s in SPLITS if any(n.role is role for n in _POOL.get((scenario, s), ())))
        raise ValueError(
            f"no {split} negotiators for {role} in scenario {scenario!r}: scenarios are {known}"
            + (f"; there the {role} has the splits {having}" if having else "")
        )
    return found


__all__ = ["SPLITS", "BatchNegotiator", "Negotiator", "ReplyRequest", "ScriptedNegotiator", "Split", "negotiators"]
