"""Whole co-training runs on a tiny model: reproducible, alive, and stopped where its numbers cannot be trusted."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from negotiation.adapter import WEIGHTS_FILE, AdapterName
from negotiation.generation import BASE, GenerationRequest, Sampling
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState, Outcome, ScenarioError
from serving.adapters import verify_adapter
from training.artifacts import BaseModelRef
from training.config import LearnerSettings, TrainingSettings
from training.cotrain import cotrain
from training.learner import RoleLearner, TrainingHalted
from training.views import TrainingView

New = Callable[..., Any]
LENGTHS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "sampling_per_token_logps")


def digests(result: Any) -> dict[Role, str]:
    return {role: hashlib.sha256((p / WEIGHTS_FILE).read_bytes()).hexdigest() for role, p in result.adapters.items()}


# --- The run as a whole -------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_adapters_bit_for_bit(new_cotraining: New) -> None:
    first, again, other = (new_cotraining(steps=2, joint_share=0.5, seed=s).run() for s in (7, 7, 8))
    assert digests(first) == digests(again)
    assert all(digests(first)[role] != digests(other)[role] for role in Role)
    assert [step.updates for step in first.steps] == [step.updates for step in again.steps]


def test_both_adapters_are_exported_verified_and_described(finished: Any, base: BaseModelRef) -> None:
    for role, directory in finished.result.adapters.items():
        manifest = verify_adapter(directory, base_sha256=base.sha256, max_rank=4)
        assert manifest == finished.result.manifests[role]
        assert (manifest.name, manifest.role) == (f"{role}@2", role)


def test_every_step_is_reported_once_with_both_roles_numbers(finished: Any) -> None:
    assert [(p.step, p.of) for p in finished.progress] == [(1, 2), (2, 2)]
    for role in Role:
        rows = finished.result.metrics[role]
        assert rows == [p.metrics[role] for p in finished.progress]
        assert all(math.isfinite(value) for row in rows for value in row.values())
        assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_n_in_is_n_out_every_dialogue_asked_for_reaches_the_loss_once(finished: Any) -> None:
    for role in Role:
        assert [len(inputs["prompt_ids"]) for inputs in finished.inputs[role]] == [8, 8]
        assert all(len({inputs[name].shape[0] for name in LENGTHS}) == 1 for inputs in finished.inputs[role])


def test_tokens_are_counted_as_sampled_and_as_trained(finished: Any) -> None:
    for role in Role:
        sampled = sum(
            len(result.token_ids)
            for request, result in finished.engine.calls
            if AdapterName.parse(request.adapter).role is role
        )
        assert finished.result.tokens_sampled[role] == finished.result.tokens_trained[role] == sampled


def test_step_adapters_are_unloaded_and_removed(finished: Any) -> None:
    assert finished.engine.loaded_adapters() == frozenset()
    assert list((finished.cotraining.output / "steps").iterdir()) == []


def test_stale_weights_every_step_samples_under_a_new_name(finished: Any) -> None:
    names = {request.adapter for request, _ in finished.engine.calls}
    assert names == {f"{role}@2-step{step}" for role in Role for step in (0, 1)}


def test_the_function_is_the_class_run_once(
    base: BaseModelRef, engine: Any, graded: Any, tiny_settings: New, tmp_path: Path
) -> None:
    scenario = graded()
    result = cotrain(
        tiny_settings(), engine, scenario, scenario.generate, dict.fromkeys(Role), 5, tmp_path, base, lambda _: None
    )
    assert {path.name for path in result.adapters.values()} == {"agent@5", "counterpart@5"}
    assert len(result.steps) == 1


def test_an_existing_version_is_refused_before_any_training(new_cotraining: New) -> None:
    run = new_cotraining()
    (run.output / "agent@2").mkdir()
    with pytest.raises(FileExistsError, match=r"agent@2 exists: .* choose a new version"):
        run.run()
    assert run.steps == []


def test_scripted_groups_and_joint_groups_are_shared_out_as_set(new_cotraining: New, graded: Any) -> None:
    for share, joint in ((0.0, 0), (0.5, 2), (1.0, 4)):
        run = new_cotraining(joint_share=share, scenarios_per_step=4)
        players: Any = {role: object() for role in Role}
        seated = run._seating.seats(0, [3, 1, 2, 0], players, run._partners)
        assert list(seated) == [3, 1, 2, 0]
        assert sum(set(seats) == {tuple(Role)} for group in seated.values() for seats in group) == joint * 2
        for first, second in seated.values():
            assert set(first) == set(second)
            for roles in first:
                assert first[roles].context == second[roles].context
                assert first[roles].players == second[roles].players
                assert first[roles].seed != second[roles].seed


# --- Trap: the adapter did nothing --------------------------------------------------------------------------------


def test_the_adapter_really_changes_the_output(finished: Any, new_engine: New) -> None:
    engine = new_engine()
    for directory in finished.result.adapters.values():
        engine.load_adapter(directory.name, directory)
    prompt, greedy = tuple(range(2, 40)), Sampling(max_tokens=8, temperature=0.0)
    names = (BASE, "agent@2", "counterpart@2")
    results = engine.generate([GenerationRequest(prompt, name, greedy) for name in names])
    assert len({result.logprobs for result in results}) == 3
    assert len({engine.fingerprint(name) for name in names}) == 3


def test_weights_moved_at_every_step(finished: Any) -> None:
    for role, learner in finished.cotraining.learners.items():
        seen = [learner.start_sha256, *(step.updates[role].adapter_sha256 for step in finished.result.steps)]
        assert len(set(seen)) == 3
        assert seen[-1] == learner.adapter_sha256()
        assert all(update.grad_norm > 0 for update in learner.updates)
        weights = load_file(finished.result.adapters[role] / WEIGHTS_FILE)
        assert all(torch.count_nonzero(tensor) for tensor in weights.values())


def test_weights_that_do_not_move_stop_the_run(new_cotraining: New) -> None:
    """A step too small for float32 stands for every empty optimizer."""
    run = new_cotraining(agent=LearnerSettings(learning_rate=1e-60))
    with pytest.raises(TrainingHalted, match="the agent's weights did not move in 1 steps"):
        run.run()


# --- Trap: the mask was wrong -------------------------------------------------------------------------------------


def test_loss_mask_and_attention_mask_are_different_things(finished: Any) -> None:
    """The model attends to every real token and to no padding; it is trained on its own tokens only."""
    pad = finished.engine.tokenizer.pad_token_id
    for role in Role:
        for inputs in finished.inputs[role]:
            attended, own = inputs["completion_mask"].bool(), inputs["tool_mask"].bool()
            assert (inputs["completion_ids"][~attended] == pad).all()
            assert (attended & ~own).any()
            assert (inputs["sampling_per_token_logps"][attended & own] < 0).all()
            assert (inputs["sampling_per_token_logps"][~(attended & own)] == 0).all()


def test_pad_is_not_eos_an_end_of_turn_that_was_sampled_is_trained_on(finished: Any) -> None:
    end = finished.engine.tokenizer.eos_token_id
    trained = sum(
        int(((inputs["completion_ids"] == end) & (inputs["completion_mask"] * inputs["tool_mask"]).bool()).sum())
        for role in Role
        for inputs in finished.inputs[role]
    )
    sampled = sum(result.token_ids.count(end) for _, result in finished.engine.calls)
    assert trained == sampled > 0


# --- Trap: sampler and trainer disagree ---------------------------------------------------------------------------


def test_sampler_and_trainer_agree_on_every_token(finished: Any) -> None:
    for role in Role:
        for update in finished.cotraining.learners[role].updates:
            assert 0 < update.logprob_gap_mean <= update.logprob_gap_max < 1e-4


@dataclass
class WrongAdapterEngine:
    """Answers every request of the counterpart with another adapter than the one it names."""

    engine: Any
    served: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def loaded_adapters(self) -> frozenset[str]:
        return self.engine.loaded_adapters() - {self.served}

    def generate(self, requests: Sequence[GenerationRequest]) -> Any:
        return self.engine.generate(
            [
                GenerationRequest(r.prompt_ids, self.served, r.sampling) if "counterpart" in r.adapter else r
                for r in requests
            ]
        )


def test_a_sampler_that_serves_another_adapter_stops_the_run(
    new_cotraining: New, new_engine: New, finished: Any, tmp_path: Path
) -> None:
    engine = new_engine()
    other = finished.cotraining.learners[Role.COUNTERPART]
    with torch.no_grad():
        saved = [p.clone() for p in other.model.parameters()]
        for name, parameter in other.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.5)
        other.export(AdapterName(role=Role.COUNTERPART, version=99), tmp_path / "counterpart@99")
        for parameter, value in zip(other.model.parameters(), saved, strict=True):
            parameter.copy_(value)
    engine.load_adapter("counterpart@99", tmp_path / "counterpart@99")
    run = new_cotraining(engine=WrongAdapterEngine(engine, "counterpart@99"))
    with pytest.raises(TrainingHalted, match=r"counterpart, step 1: sampler and trainer differ by .* limit is 0\.05"):
        run.run()
    assert engine.loaded_adapters() == {"counterpart@99"}


# --- Trap: dead groups --------------------------------------------------------------------------------------------


def test_dead_groups_give_no_gradient_and_are_counted(new_cotraining: New, graded: Any) -> None:
    run = new_cotraining(graded(dict.fromkeys(Role, 0.0), dict.fromkeys(Role, 0.4)))
    result = run.run()
    for role, learner in run.learners.items():
        [update] = learner.updates
        assert update.zero_variance_groups == 1
        assert update.grad_norm == 0
        assert update.reward == pytest.approx(0.4)
        assert learner.adapter_sha256() == learner.start_sha256
        assert result.adapters[role].is_dir()


def test_dead_groups_are_those_of_one_role_alone(new_cotraining: New, graded: Any) -> None:
    run = new_cotraining(graded({Role.AGENT: 0.0}))
    run.run()
    shares = {role: learner.updates[0].zero_variance_groups for role, learner in run.learners.items()}
    assert shares == {Role.AGENT: 1, Role.COUNTERPART: 0}


# --- Trap: normalising across roles or groups ---------------------------------------------------------------------


def test_advantages_are_normalised_within_one_group_of_one_role(finished: Any) -> None:
    for role in Role:
        for inputs in finished.inputs[role]:
            groups: dict[bytes, list[float]] = {}
            for row, advantage in enumerate(inputs["advantages"][:, 0].tolist()):
                prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()]
                system = prompt[: prompt.tolist().index(finished.engine.tokenizer.eos_token_id)]
                groups.setdefault(system.numpy().tobytes(), []).append(advantage)
            assert [len(values) for values in groups.values()] == [4, 4]
            for values in groups.values():
                assert sum(values) == pytest.approx(0, abs=1e-4)
                assert torch.tensor(values).std().item() == pytest.approx(1, abs=0.01)


# --- Trap: the KL reference ---------------------------------------------------------------------------------------


def test_the_kl_reference_is_the_base_with_its_adapter_off(finished: Any) -> None:
    """A fresh adapter is the base: no divergence at the first step, some after."""
    for learner in finished.cotraining.learners.values():
        first, second = learner.updates
        assert first.kl == 0
        assert second.kl > 0


def test_the_kl_reference_stays_the_base_when_a_run_goes_on_from_an_adapter(
    finished: Any, new_cotraining: New
) -> None:
    run = new_cotraining(start=finished.result.adapters, version=3)
    run.run()
    assert all(learner.updates[0].kl > 0 for learner in run.learners.values())


# --- Trap: a bound on memory changes the update -------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_a_smaller_forward_batch_gives_the_same_update(new_cotraining: New, micro_batch: int) -> None:
    whole, parts = (
        new_cotraining(scenarios_per_step=3, micro_batch=size, max_logprob_gap=0.01) for size in (0, micro_batch)
    )
    whole.run()
    parts.run()
    for role in Role:
        (one,), (other,) = whole.learners[role].updates, parts.learners[role].updates
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)
        assert other.reward == pytest.approx(one.reward)
        assert other.zero_variance_groups == one.zero_variance_groups
        assert other.logprob_gap_mean == pytest.approx(one.logprob_gap_mean, abs=1e-6)
        steps = [dict(run.learners[role].model.named_parameters()) for run in (whole, parts)]
        moved = [p for name, p in steps[0].items() if ".lora_B." in name]
        again = [p for name, p in steps[1].items() if ".lora_B." in name]
        agreeing = sum(int(torch.isclose(a, b, atol=1e-4).sum()) for a, b in zip(moved, again, strict=True))
        assert agreeing / sum(p.numel() for p in moved) > 0.99


# --- Trap: a broken scorer scored as zero -------------------------------------------------------------------------


def breaking(scenario_class: Any, breaks: Callable[[int], bool]) -> Any:
    class Breaking(scenario_class):  # type: ignore[misc]
        scored = 0

        def outcome(self, context: Context, state: NegotiationState) -> Outcome:
            type(self).scored += 1
            if breaks(type(self).scored):
                raise ScenarioError("the scorer is broken")
            return super().outcome(context, state)

    return Breaking()


def test_a_broken_scorer_is_counted_and_its_episode_rolled_again(new_cotraining: New, graded: Any) -> None:
    run = new_cotraining(breaking(graded, lambda count: count == 2), max_failed_share=0.5)
    result = run.run()
    assert result.steps[0].dropped == 1
    assert all(row[0]["dropped"] == 1 for row in result.metrics.values())
    assert all(step.reward[role] > 0 for step in result.steps for role in Role)


def test_too_many_broken_episodes_stop_the_run(new_cotraining: New, graded: Any) -> None:
    run = new_cotraining(breaking(graded, lambda count: count in (1, 2)), max_failed_share=0.1)
    with pytest.raises(TrainingHalted, match="step 1: 50% of episodes were dropped, the limit is 10%"):
        run.run()
    assert run.engine.loaded_adapters() == frozenset()


# --- A role that never spoke --------------------------------------------------------------------------------------


def learn_from(
    views: Callable[[int], list[TrainingView]], base: BaseModelRef, settings: TrainingSettings, output: Path
) -> tuple[RoleLearner, list[dict[str, torch.Tensor]]]:
    """One learner fed with given views: no engine, no other role."""
    learner = RoleLearner(
        Role.AGENT, settings, base, None, output, lambda step, _: views(step), lambda role, update: None
    )
    inputs: list[dict[str, torch.Tensor]] = []
    compute = learner.trainer._compute_loss

    def recording(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        inputs.append(batch)
        return compute(model, batch)

    learner.trainer._compute_loss = recording
    learner.train()
    return learner, inputs


def spoken(seed: int, reward: float | None) -> TrainingView:
    """Six tokens of its own, or none where it never spoke."""
    rng = random.Random(seed)
    ids = [rng.randrange(5, 400) for _ in range(6)]
    if reward is None:
        return TrainingView(ids, [1], [0], [0.0], None)
    return TrainingView(ids, ids[::-1], [1] * 6, [-6.0] * 6, reward)


def test_a_silent_role_has_no_advantage_and_does_not_shift_its_groups_mean(
    base: BaseModelRef, tiny_settings: New, tmp_path: Path
) -> None:
    settings = tiny_settings(scenarios_per_step=1, group_size=4, max_logprob_gap=100)
    views = [spoken(1, 0.9), spoken(2, None), spoken(3, 0.1), spoken(4, 0.5)]
    learner, [inputs] = learn_from(lambda _: views, base, settings, tmp_path)
    rows = range(len(inputs["advantages"]))
    by_prompt = {inputs["prompt_ids"][row].tolist()[0]: inputs["advantages"][row, 0].item() for row in rows}
    advantages = [by_prompt[view.prompt_ids[0]] for view in views if view.reward is not None]
    assert advantages == pytest.approx([1, -1, 0], abs=0.01)
    assert len(by_prompt) == 3
    assert learner.updates[0].reward == pytest.approx(0.5)


@pytest.mark.parametrize("speaking", [0, 1])
def test_a_step_in_which_a_role_hardly_spoke_neither_fails_nor_moves_it(
    base: BaseModelRef, tiny_settings: New, tmp_path: Path, speaking: int
) -> None:
    """No group has two rewards to compare: dead groups, not a crash and not a halt."""
    settings = tiny_settings(scenarios_per_step=2, group_size=2, max_logprob_gap=100)
    views = [spoken(n, 0.5 if n < speaking else None) for n in range(4)]
    learner, _ = learn_from(lambda _: views, base, settings, tmp_path)
    [update] = learner.updates
    assert update.zero_variance_groups == 1
    assert update.reward_std == 0
    assert math.isnan(update.reward) is (speaking == 0)
    assert learner.adapter_sha256() == learner.start_sha256


def test_a_group_with_one_speaking_dialogue_is_dead_beside_a_live_one(
    base: BaseModelRef, tiny_settings: New, tmp_path: Path
) -> None:
    settings = tiny_settings(scenarios_per_step=2, group_size=2, max_logprob_gap=100)
    views = [spoken(1, 0.9), spoken(2, None), spoken(3, 0.1), spoken(4, 0.5)]
    learner, _ = learn_from(lambda _: views, base, settings, tmp_path)
    assert learner.updates[0].zero_variance_groups == 0.5
    assert learner.adapter_sha256() != learner.start_sha256


def test_views_that_got_lost_stop_the_run(base: BaseModelRef, tiny_settings: New, tmp_path: Path) -> None:
    with pytest.raises(TrainingHalted, match="4 dialogues were asked for, 3 came back"):
        learn_from(lambda _: [spoken(n, 0.5) for n in range(3)], base, tiny_settings(), tmp_path)


# --- Settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("group_size", 1), ("joint_share", 1.5), ("max_logprob_gap", 0), ("learning_rat", 1e-3)],
)
def test_settings_out_of_bounds_name_their_field(field: str, value: float) -> None:
    with pytest.raises(ValidationError, match=field):
        TrainingSettings(**{field: value})
