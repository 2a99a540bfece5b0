"""Who meets whom in a step. Pure: the same step is seated the same way in any process and after any restart.

For each dialogue of a scenario group there is either one table at which both learning roles sit (its dialogue gives
a view to each), or one table per learning role with a partner who does not learn from it. Partners are drawn anew
for each group: the dialogues of one group must differ in chance alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from negotiation.roles import Role
from negotiation.scenario import Context
from training.config import TrainingSettings
from training.joint_rollout import Player, Table
from training.methods import MethodPlan
from training.partners import Partners

Seats = dict[tuple[Role, ...], Table]
"""The tables of one dialogue, by the roles that learn from each."""


@dataclass(frozen=True)
class Seating:
    """Seats the groups of one run."""

    settings: TrainingSettings
    plan: MethodPlan
    contexts: Callable[[int], Context]

    def seats(
        self, step: int, indices: Sequence[int], players: dict[Role, Player], partners: Partners
    ) -> dict[int, list[Seats]]:
        """For each scenario index, the tables of its dialogues. ``indices`` may be a process's share of the step."""
        scenarios = self.settings.scenarios_per_step
        joint = self._joint(step)
        found: dict[int, list[Seats]] = {}
        for index in indices:
            position = index - step * scenarios
            if not 0 <= position < scenarios:
                raise ValueError(f"scenario {index} is not one of step {step + 1}'s {scenarios}")
            rng = random.Random(f"{self.settings.seed}:group:{step}:{position}")
            context = self.contexts(index)
            drawn = {role: partners.draw(role, rng) for role in self.plan.learning}
            found[index] = [
                self._dialogue(context, players, None if position in joint else drawn, rng.getrandbits(40))
                for _ in range(self.settings.group_size)
            ]
        return found

    def _joint(self, step: int) -> set[int]:
        """Positions of the groups in which the learning roles meet each other."""
        scenarios = self.settings.scenarios_per_step
        share = {"mixed": self.settings.joint_share, "learning": 1.0}.get(self.plan.partner, 0.0)
        rng = random.Random(f"{self.settings.seed}:opponents:{step}")
        return set(rng.sample(range(scenarios), round(share * scenarios)))

    def _dialogue(
        self, context: Context, players: dict[Role, Player], partners: dict[Role, Player] | None, seed: int
    ) -> Seats:
        if partners is None:
            return {tuple(Role): Table(context, {role: players[role] for role in Role}, seed)}
        return {
            (role,): Table(context, {role: players[role], role.other: partner}, seed)
            for role, partner in partners.items()
        }
