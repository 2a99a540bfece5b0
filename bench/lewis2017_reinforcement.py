"""The reinforcement part of ``bench/lewis2017.py``: the agent against the LIKELIHOOD model, or both sides together.

``unilateral-frozen`` is what Lewis et al. 2017 did (the other side stays the LIKELIHOOD model); ``bilateral`` also
trains the counterpart, isolated from the agent. The learner is this project's own: LoRA, group-relative advantages,
and KL to the LIKELIHOOD model in place of their interleaved supervised steps. The reward is the scenario's, own
points / 10.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.generation import Engine
from negotiation.roles import Role
from negotiation.scenario import Context
from training.artifacts import BaseModelRef
from training.config import LearnerSettings, TrainingSettings
from training.cotrain import cotrain
from training.methods import Method
from training.records import RoundProgress


class Reinforcement(BaseModel):
    """How the agent learns from its own talks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    steps: int = 60
    scenarios_per_step: int = 8
    group_size: int = 8
    learning_rate: float = 4e-3
    kl_coefficient: float = 0.02
    max_message_tokens: int = 40


def train_agent(
    method: Method,
    recipe: Reinforcement,
    engine: Engine,
    base: BaseModelRef,
    contexts: Sequence[Context],
    output: Path,
    show: Callable[[int, int, str], None],
) -> dict[str, Any]:
    """Train and export ``agent@1`` (and ``counterpart@1``) to ``output``; what it took, and each step's figures.

    An interrupted run goes on from its checkpoint in ``output``. Raises TrainingHalted, RolloutFailed.
    """
    settings = TrainingSettings(
        method=method,
        seed=recipe.seed,
        steps=recipe.steps,
        scenarios_per_step=recipe.scenarios_per_step,
        group_size=recipe.group_size,
        # The two learners meet each other only: our scripted families do not speak as people do.
        joint_share=1.0,
        # Nor do the validation families: the measure of this benchmark is the LIKELIHOOD model.
        validation_every=0,
        max_message_tokens=recipe.max_message_tokens,
        threads=1,
        agent=LearnerSettings(learning_rate=recipe.learning_rate, kl_coefficient=recipe.kl_coefficient),
        counterpart=LearnerSettings(learning_rate=recipe.learning_rate / 2, kl_coefficient=recipe.kl_coefficient),
    )
    drawn = _drawn(contexts, recipe.seed)

    def progress(at: RoundProgress) -> None:
        agent = at.metrics[Role.AGENT]
        show(at.step, at.of, f"reward {agent['reward']:.3f}, agreed {agent['agreement']:.0%}, kl {agent['kl']:.3f}")

    trained = cotrain(settings, engine, DealOrNoDeal(), drawn, dict.fromkeys(Role), 1, output, base, progress)
    return {
        "seconds": trained.seconds,
        "tokens_sampled": {str(role): count for role, count in trained.tokens_sampled.items()},
        "steps": {str(role): rows for role, rows in trained.metrics.items() if rows},
    }


def _drawn(contexts: Sequence[Context], seed: int) -> Callable[[int], Context]:
    """The index-th training scenario: a context, which side the agent takes, and who speaks first."""

    def context(index: int) -> Context:
        rng = random.Random(f"lewis2017:{seed}:{index}")
        chosen, swapped = rng.choice(contexts), rng.random() < 0.5
        views = {role: chosen.views[role.other if swapped else role] for role in Role}
        return chosen.model_copy(update={"views": views, "first_speaker": rng.choice(list(Role))})

    return context
