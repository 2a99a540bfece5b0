"""Scenarios by name."""

from __future__ import annotations

from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.scenario import Scenario, ScenarioError
from negotiation.telesales import VehicleTelesales

_SCENARIOS: dict[str, Scenario] = {s.name: s for s in (VehicleTelesales(), DealOrNoDeal())}
NAMES = tuple(_SCENARIOS)


def scenario_named(name: str) -> Scenario:
    """The scenario of that name. Raises ScenarioError naming the ones there are."""
    if name not in _SCENARIOS:
        raise ScenarioError(f"unknown scenario {name!r}: choose one of {', '.join(NAMES)}")
    return _SCENARIOS[name]
