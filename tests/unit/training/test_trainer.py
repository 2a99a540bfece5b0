"""What differs from TRL's trainer: importance against the engine, no idle work, credit by turn."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from negotiation.roles import Role
from training.artifacts import BaseModelRef
from training.learner import RoleLearner, _by_turn
from training.views import TrainingView

New = Callable[..., Any]


def view(seed: int, reward: float | None, length: int = 6) -> TrainingView:
    rng = random.Random(seed)
    ids = [rng.randrange(5, 400) for _ in range(length)]
    return TrainingView(ids, ids[::-1], [1] * length, [-6.0] * length, reward)


def learn(
    views: list[TrainingView], base: BaseModelRef, settings: Any, output: Path
) -> tuple[RoleLearner, list[dict[str, torch.Tensor]]]:
    """One step on given views; also what reached the loss."""
    learner = RoleLearner(Role.AGENT, settings, base, None, output, lambda *_: views, lambda *_: None)
    inputs: list[dict[str, torch.Tensor]] = []
    compute = learner.trainer._compute_loss

    def recording(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        inputs.append(batch)
        return compute(model, batch)

    learner.trainer._compute_loss = recording  # type: ignore[method-assign]
    learner.train()
    return learner, inputs


def test_dead_groups_are_left_out_of_the_update_and_of_its_denominator(
    base: BaseModelRef, tiny_settings: New, tmp_path: Path
) -> None:
    live = [view(1, 0.9), view(2, 0.1)]
    dead = [view(3, 0.5, 30), view(4, 0.5, 30)]
    weights = []
    for number, views in enumerate((live, live + dead)):
        settings = tiny_settings(scenarios_per_step=len(views) // 2, group_size=2, max_logprob_gap=100)
        learner, inputs = learn(views, base, settings, tmp_path / str(number))
        assert sum(len(batch["prompt_ids"]) for batch in inputs) == 2
        assert learner.tokens_trained == 12
        weights.append(learner.adapter_sha256())
    assert weights[0] == weights[1]


def test_padding_is_cut_to_the_longest_dialogue_of_a_micro_batch(
    base: BaseModelRef, tiny_settings: New, tmp_path: Path
) -> None:
    settings = tiny_settings(scenarios_per_step=2, group_size=2, micro_batch=2, max_logprob_gap=100)
    views = [view(1, 0.9, 4), view(2, 0.1, 40), view(3, 0.2, 5), view(4, 0.7, 38)]
    _, inputs = learn(views, base, settings, tmp_path)
    assert [batch["completion_ids"].shape[1] for batch in inputs] == [40, 5]
    assert [batch["prompt_ids"].shape[1] for batch in inputs] == [40, 5]


def loss_at(learner: RoleLearner, inputs: dict[str, Any], logps: torch.Tensor) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        given_logps = logps, torch.zeros_like(logps), None
        patch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", lambda *_, **__: given_logps)
        loss: torch.Tensor = type(learner.trainer)._compute_loss(learner.trainer, learner.trainer.model, inputs)
        return loss


def test_importance_is_taken_against_the_engine_and_truncated_token_by_token(
    base: BaseModelRef, tiny_settings: New, tmp_path: Path
) -> None:
    """A token's gradient is its ratio times its advantage, up to the cap; the clip ends what would go further."""
    learner, [inputs] = learn(
        [view(1, 0.9), view(2, 0.1)],
        base,
        tiny_settings(
            scenarios_per_step=1,
            group_size=2,
            max_logprob_gap=100,
            agent={"kl_coefficient": 0.0, "clip_range": 0.2, "importance_cap": 2.0},
        ),
        tmp_path,
    )
    shift = torch.tensor([0.0, 0.1, -0.1, 0.5, 1.5, -1.5])
    logps = (inputs["sampling_per_token_logps"] + shift).requires_grad_()
    loss_at(learner, inputs, logps).backward()
    assert logps.grad is not None
    tokens = float(inputs["num_items_in_batch"])
    for row, advantage in enumerate(inputs["advantages"][:, 0].tolist()):
        slope = [-float(g) * tokens / advantage for g in logps.grad[row]]
        ratio = shift.exp().tolist()
        if advantage > 0:
            assert slope == pytest.approx([*ratio[:3], 0.0, 0.0, ratio[5]], abs=1e-4)
        else:
            assert slope == pytest.approx([*ratio[:4], 0.0, 0.0], abs=1e-4)


def test_per_turn_credit_discounts_each_own_turn_before_the_last() -> None:
    own = [1, 1, 0, 0, 1, 0, 1, 1]
    assert _by_turn(2.0, own, 1.0) == [2.0] * 8
    assert _by_turn(2.0, own, 0.5) == [0.5, 0.5, 0.0, 0.0, 1.0, 0.0, 2.0, 2.0]


def test_per_turn_credit_reaches_the_loss(base: BaseModelRef, tiny_settings: New, tmp_path: Path) -> None:
    turns = [TrainingView([9, 8, 7], [11, 12, 13], [1, 0, 1], [-6.0, 0.0, -6.0], reward) for reward in (0.9, 0.1)]
    settings = tiny_settings(scenarios_per_step=1, group_size=2, max_logprob_gap=100, per_turn_credit=0.5)
    _, [inputs] = learn(turns, base, settings, tmp_path)
    for row in inputs["advantages"]:
        assert row[0].item() == pytest.approx(0.5 * row[2].item())
        assert row[1].item() == 0


def test_the_drift_from_the_base_is_measured_on_own_tokens_alone(
    base: BaseModelRef, tiny_settings: New, tmp_path: Path
) -> None:
    mixed = [TrainingView([9, 8, 7], [11, 12, 13], [1, 0, 1], [-6.0, 0.0, -6.0], reward) for reward in (0.9, 0.1)]
    settings = tiny_settings(scenarios_per_step=1, group_size=2, max_logprob_gap=100)
    learner, [inputs] = learn(mixed, base, settings, tmp_path)
    own = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
    assert learner.updates[0].base_nll == pytest.approx(-inputs["ref_per_token_logps"][own].mean().item(), rel=1e-5)
