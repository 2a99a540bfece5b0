"""Watches a run for the ways in which self-trained negotiators go wrong while their curves look healthy.

Each rule compares the mean of the last few steps with that of the run's first steps:

* language drift: own tokens become unlikely under the frozen base (a code that only the partners understand;
  Lewis et al. 2017 kept one side fixed against it);
* length growth: dialogues fill with words;
* always-agree reward hacking: agreement rises while own reward falls;
* collusion: the roles' joint reward rises while success against the validation counterparts, who learn nothing,
  falls.

Left out on purpose: the sampler-trainer gap and dropped episodes, which are faults of the machinery and stop a run at
once where they are measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from negotiation.roles import Role
from training.config import HealthSettings
from training.records import StepMetrics


def health_problem(steps: Sequence[StepMetrics], settings: HealthSettings) -> str | None:
    """Why the run should stop, or None. Looks at complete steps only; the first rule that is broken speaks."""
    if len(steps) < 2 * settings.window:
        return None
    first, last = steps[: settings.window], steps[-settings.window :]
    for role in steps[0].updates:
        if problem := _drift(role, first, last, settings) or _length(role, first, last, settings):
            return problem
        if problem := _always_agrees(role, first, last, settings):
            return problem
    return _collusion(steps, settings)


def _drift(role: Role, first: Sequence[StepMetrics], last: Sequence[StepMetrics], s: HealthSettings) -> str | None:
    before, after = (_mean(step.updates[role].base_nll for step in part) for part in (first, last))
    if not after - before > s.max_language_drift:
        return None
    return (
        f"language drift: under the frozen base the {role}'s tokens went from {before:.2f} to {after:.2f} nats each, "
        f"{after - before:.2f} more; the limit is {s.max_language_drift}. Raise kl_coefficient or lower learning_rate"
    )


def _length(role: Role, first: Sequence[StepMetrics], last: Sequence[StepMetrics], s: HealthSettings) -> str | None:
    before, after = (_mean(step.updates[role].own_tokens for step in part) for part in (first, last))
    if not after > s.max_length_growth * before:
        return None
    return (
        f"length growth: the {role} went from {before:.0f} to {after:.0f} tokens a dialogue, "
        f"{after / before:.1f} times as many; the limit is {s.max_length_growth}. Lower max_message_tokens"
    )


def _always_agrees(
    role: Role, first: Sequence[StepMetrics], last: Sequence[StepMetrics], s: HealthSettings
) -> str | None:
    agreement = [_mean(step.agreement[role] for step in part) for part in (first, last)]
    reward = [_mean(step.reward[role] for step in part) for part in (first, last)]
    gain, loss = agreement[1] - agreement[0], reward[0] - reward[1]
    if not (gain > s.hacked_agreement_gain and loss > s.hacked_reward_loss):
        return None
    return (
        f"always-agree: the {role}'s agreement rose from {agreement[0]:.2f} to {agreement[1]:.2f} while its own "
        f"reward fell from {reward[0]:.2f} to {reward[1]:.2f}; the limits are +{s.hacked_agreement_gain} and "
        f"-{s.hacked_reward_loss}. Check the reward, or lower learning_rate"
    )


def _collusion(steps: Sequence[StepMetrics], s: HealthSettings) -> str | None:
    validated = [step for step in steps if step.validation_success is not None]
    if len(validated) < 2:
        return None
    success = [validated[0].validation_success or 0.0, validated[-1].validation_success or 0.0]
    # A few dozen talks tell little: what chance alone may do to the difference is allowed on top of the limit.
    chance = 2 * math.sqrt(sum(p * (1 - p) / validated[0].validation_talks for p in success))
    reward = [_mean(step.joint_reward for step in part) for part in (steps[: s.window], steps[-s.window :])]
    gain, loss = reward[1] - reward[0], success[0] - success[1]
    if not (gain > s.collusion_reward_gain and loss > s.collusion_success_loss + chance):
        return None
    return (
        f"collusion: the roles' joint reward rose from {reward[0]:.2f} to {reward[1]:.2f} while success against the "
        f"validation counterparts fell from {success[0]:.2f} to {success[1]:.2f}; the limits are "
        f"+{s.collusion_reward_gain} and -{s.collusion_success_loss}, and {chance:.2f} more for chance. "
        "Lower joint_share or raise kl_coefficient"
    )


def _mean(values: Iterable[float]) -> float:
    """Over the numbers among them; NaN if there is none, which breaks no limit."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
