"""Advantages of one role's dialogues, from that role's own rewards.

Two estimators. *Group-relative* (GRPO, arXiv 2402.03300, eq. 3): reward minus the mean over the dialogues of one
scenario, divided by their standard deviation. *Running baseline* (role-conditioned advantage estimation, SPIRAL,
arXiv 2506.24119): reward minus an exponential mean of the role's rewards so far, for when the dialogues of a group
are not exchangeable. A dialogue without a reward (the role never spoke) gets none and counts in no mean.

Normalising over both roles together mixes two reward scales; :func:`pooled` does it for the ablation that shows so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Rewards = Sequence[float | None]
Advantages = list[float | None]
_NO_SPREAD = 1e-8
_STABLE = 1e-4


class AdvantageEstimator(Protocol):
    """``advantages(rewards, group_size)``: None where a dialogue has nothing to teach."""

    def advantages(self, rewards: Rewards, group_size: int) -> Advantages: ...

    def state(self) -> dict[str, float]: ...

    def restore(self, state: dict[str, float]) -> None: ...


class GroupRelative:
    """Stateless. A group without spread has None throughout: it gives no gradient and is left out."""

    def advantages(self, rewards: Rewards, group_size: int) -> Advantages:
        return [
            advantage
            for first in range(0, len(rewards), group_size)
            for advantage in _normalised(rewards[first : first + group_size])
        ]

    def state(self) -> dict[str, float]:
        return {}

    def restore(self, state: dict[str, float]) -> None:
        pass


@dataclass
class RunningBaseline:
    """``baseline`` follows the mean reward of each call: b <- decay * b + (1 - decay) * mean, from the first."""

    decay: float = 0.9
    baseline: float | None = None

    def advantages(self, rewards: Rewards, group_size: int) -> Advantages:
        known = [reward for reward in rewards if reward is not None]
        if not known:
            return [None] * len(rewards)
        mean = sum(known) / len(known)
        baseline = mean if self.baseline is None else self.baseline
        self.baseline = self.decay * baseline + (1 - self.decay) * mean
        return [None if reward is None else reward - baseline for reward in rewards]

    def state(self) -> dict[str, float]:
        return {} if self.baseline is None else {"baseline": self.baseline}

    def restore(self, state: dict[str, float]) -> None:
        self.baseline = state.get("baseline")


def pooled(rewards: Rewards, others: Rewards, group_size: int) -> Advantages:
    """As :class:`GroupRelative`, but mean and deviation are taken over both roles' rewards of a scenario."""
    found: Advantages = []
    for first in range(0, len(rewards), group_size):
        own, other = rewards[first : first + group_size], others[first : first + group_size]
        found += _normalised([*own, *other])[: len(own)]
    return found


def dead_share(advantages: Advantages, group_size: int) -> float:
    """Share of groups in which no dialogue has an advantage."""
    groups = [advantages[first : first + group_size] for first in range(0, len(advantages), group_size)]
    return sum(all(a is None for a in group) for group in groups) / len(groups)


def _normalised(rewards: Rewards) -> Advantages:
    known = [reward for reward in rewards if reward is not None]
    if len(known) < 2 or max(known) - min(known) < _NO_SPREAD:
        return [None] * len(rewards)
    mean = sum(known) / len(known)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in known) / (len(known) - 1))
    return [None if reward is None else (reward - mean) / (deviation + _STABLE) for reward in rewards]
