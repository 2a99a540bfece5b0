"""Training contexts of a round: situations met in finished conversations, mixed with generated ones.

A live conversation tells the public part and the agent's view. Who the customer really was stays unknown, so each
use draws a counterpart anew from the scenario. Seeds are kept apart by construction: training seeds lie under
:data:`FIRST_HELD_OUT_SEED`, held-out ones over it, and each round has a block of its own in both, so no scenario
that judges a candidate was ever trained on or judged an earlier candidate.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from negotiation.roles import Role
from negotiation.scenario import Context, Scenario, ScenarioError

FIRST_HELD_OUT_SEED = 1_000_000_000_000
TRAINING_BLOCK = 10_000_000
HELD_OUT_BLOCK = 10_000


def training_seed(version: int, index: int) -> int:
    """The seed of the round's ``index``-th generated training context."""
    if not 0 <= index < TRAINING_BLOCK:
        raise ValueError(f"index {index} is outside the round's block of {TRAINING_BLOCK} training seeds")
    seed = version * TRAINING_BLOCK + index
    if seed >= FIRST_HELD_OUT_SEED:
        raise ValueError(f"version {version} has no training seeds left under {FIRST_HELD_OUT_SEED}")
    return seed


def held_out_seeds(version: int, count: int) -> range:
    """The seeds on which the round's candidates and champions are compared."""
    if not 0 < count <= HELD_OUT_BLOCK:
        raise ValueError(f"{count} scenarios asked for, a round has 1 to {HELD_OUT_BLOCK} held-out ones")
    first = FIRST_HELD_OUT_SEED + version * HELD_OUT_BLOCK
    return range(first, first + count)


@dataclass(frozen=True)
class TrainingContexts:
    """``contexts(index)``: the same index gives the same context, in any order and any process."""

    scenario: Scenario
    version: int
    live: tuple[Context, ...]
    live_share: float

    def __call__(self, index: int) -> Context:
        seed = training_seed(self.version, index)
        rng = random.Random(f"calibration:{seed}")
        if self.live and rng.random() < self.live_share:
            return self.scenario.complete(rng.choice(self.live), seed).model_copy(update={"seed": seed})
        return self.scenario.generate(seed)


def usable_contexts(scenario: Scenario, found: Sequence[Context]) -> tuple[tuple[Context, ...], int]:
    """Contexts cut down to what the agent's side knew, and how many were left out as invalid or held out."""
    usable = []
    for context in found:
        held_out = context.seed is not None and context.seed >= FIRST_HELD_OUT_SEED
        known = {role: view for role, view in context.views.items() if role is Role.AGENT}
        cut = context.model_copy(update={"views": known, "seed": None})
        try:
            scenario.validate(cut)
        except ScenarioError:
            continue
        if not held_out:
            usable.append(cut)
    return tuple(usable), len(found) - len(usable)
