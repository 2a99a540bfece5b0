"""The pool of scripted counterparts, by scenario, role and split.

Neither the warm start nor training meets a held-out family; a test holds that names and wordings do not overlap.
"""

from __future__ import annotations

from typing import Literal

from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.roles import Role
from negotiation.telesales import VehicleTelesales
from training.counterparts import deal_negotiators, telesales_agents, telesales_customers
from training.counterparts.negotiator import Negotiator

Split = Literal["warm_start", "train", "held_out"]

_POOL: dict[tuple[str, Split], tuple[Negotiator, ...]] = {
    (VehicleTelesales.name, "warm_start"): (*telesales_customers.WARM_START, *telesales_agents.TRAINING),
    (DealOrNoDeal.name, "warm_start"): deal_negotiators.TRAINING,
    (VehicleTelesales.name, "train"): (*telesales_customers.TRAINING, *telesales_agents.TRAINING),
    (VehicleTelesales.name, "held_out"): (*telesales_customers.HELD_OUT, *telesales_agents.HELD_OUT),
    (DealOrNoDeal.name, "train"): deal_negotiators.TRAINING,
    (DealOrNoDeal.name, "held_out"): deal_negotiators.HELD_OUT,
}


def negotiators(scenario: str, role: Role, split: Split) -> tuple[Negotiator, ...]:
    """The scripted negotiators of a scenario who play ``role``. Raises ValueError if there are none."""
    found = tuple(n for n in _POOL.get((scenario, split), ()) if n.role is role)
    if not found:
        known = ", ".join(sorted({name for name, _ in _POOL}))
        raise ValueError(f"no {split} negotiators for {role} in scenario {scenario!r}: scenarios are {known}")
    return found


__all__ = ["Negotiator", "Split", "negotiators"]
