"""Each way in which a run goes wrong is seen and named with its figures; a healthy run is left alone."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from negotiation.roles import Role
from training.config import HealthSettings
from training.health import health_problem
from training.records import StepMetrics, UpdateMetrics

LIMITS = HealthSettings(window=2)
UPDATE = UpdateMetrics(
    step=1,
    reward=0.4,
    reward_std=0.3,
    zero_variance_groups=0.0,
    loss=0.0,
    kl=0.01,
    entropy=0.2,
    grad_norm=0.1,
    logprob_gap_mean=0.0,
    logprob_gap_max=0.0,
    base_nll=0.2,
    own_tokens=50.0,
    tokens_trained=400,
    adapter_sha256="0" * 64,
)


def step(number: int, update: dict[str, Any] | None = None, **changes: Any) -> StepMetrics:
    plain = StepMetrics(
        step=number,
        success=dict.fromkeys(Role, 0.5),
        agreement=dict.fromkeys(Role, 0.5),
        reward=dict.fromkeys(Role, 0.4),
        joint_reward=0.6,
        tokens_sampled=dict.fromkeys(Role, 400),
        dialogues=16,
        dropped=0,
        overflowed=0,
        rollout_seconds=1.0,
        updates=dict.fromkeys(Role, replace(UPDATE, step=number, **(update or {}))),
    )
    return replace(plain, **changes)


def run(last: dict[str, Any], update: dict[str, Any] | None = None) -> list[StepMetrics]:
    """Four steps, of which the last two are changed."""
    return [step(1), step(2), step(3, update, **last), step(4, update, **last)]


def test_a_healthy_run_is_left_alone() -> None:
    assert health_problem(run({}), LIMITS) is None


def test_rewards_that_rise_on_both_sides_are_no_collusion_while_validation_holds() -> None:
    steps = run({"joint_reward": 1.2, "validation_success": 0.5, "validation_talks": 400})
    steps[0] = replace(steps[0], validation_success=0.5, validation_talks=400)
    assert health_problem(steps, LIMITS) is None


@pytest.mark.parametrize(
    ("last", "update", "says"),
    [
        (
            {},
            {"base_nll": 1.9},
            r"language drift: .* from 0\.20 to 1\.90 nats .* limit is 1\.5\. Raise kl_coefficient",
        ),
        ({}, {"own_tokens": 200.0}, r"length growth: .* from 50 to 200 tokens .* limit is 3\.0\. Lower max_message"),
        (
            {"agreement": dict.fromkeys(Role, 0.95), "reward": dict.fromkeys(Role, 0.1)},
            {},
            r"always-agree: the agent's agreement rose from 0\.50 to 0\.95 .* own reward fell from 0\.40 to 0\.10",
        ),
    ],
)
def test_a_run_that_goes_wrong_is_named_with_its_figures(
    last: dict[str, Any], update: dict[str, Any], says: str
) -> None:
    problem = health_problem(run(last, update), LIMITS)
    assert problem is not None
    assert re.search(says, problem), problem


def test_collusion_is_joint_reward_up_while_validation_success_is_down() -> None:
    steps = run({"joint_reward": 1.2, "validation_success": 0.2, "validation_talks": 400})
    steps[0] = replace(steps[0], validation_success=0.5, validation_talks=400)
    problem = health_problem(steps, LIMITS)
    assert problem is not None
    assert problem.startswith("collusion: the roles' joint reward rose from 0.60 to 1.20")
    assert "validation counterparts fell from 0.50 to 0.20" in problem


def test_a_fall_that_chance_explains_is_no_collusion() -> None:
    """The same fall over 24 talks: two standard errors are 0.26 of it."""
    steps = run({"joint_reward": 1.2, "validation_success": 0.2, "validation_talks": 24})
    steps[0] = replace(steps[0], validation_success=0.5, validation_talks=24)
    assert health_problem(steps, LIMITS) is None


def test_agreement_that_pays_is_no_hacking() -> None:
    last = {"agreement": dict.fromkeys(Role, 0.95), "reward": dict.fromkeys(Role, 0.7)}
    assert health_problem(run(last), LIMITS) is None


def test_too_few_steps_say_nothing() -> None:
    assert health_problem(run({}, {"base_nll": 9.0})[1:], LIMITS) is None


def test_what_was_never_measured_breaks_no_limit() -> None:
    assert health_problem(run({"joint_reward": math.nan}, {"base_nll": math.nan}), LIMITS) is None
