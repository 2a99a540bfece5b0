"""Six methods side by side: who learns, whose weights play, what they cost, and which keep the roles apart."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from negotiation.adapter import WEIGHTS_FILE, AdapterName
from negotiation.generation import BASE
from negotiation.roles import Role
from training.artifacts import BaseModelRef, initialise_adapter
from training.config import AdapterSettings
from training.learner import TrainingHalted
from training.methods import BOTH, Method, plan_of

New = Callable[..., Any]
ISOLATED = [method for method in Method if plan_of(method).isolated]


def digest(path: Path) -> str:
    return hashlib.sha256((path / WEIGHTS_FILE).read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def runs(new_cotraining: New, new_engine: New, spy_on: New) -> dict[Method, Any]:
    """One step of each method, with what the engine sampled in it."""
    found = {}
    for method in Method:
        engine = spy_on(new_engine())
        run = new_cotraining(engine=engine, method=method, scenarios_per_step=2, joint_share=0.5)
        found[method] = (run, run.run(), engine)
    return found


def test_the_isolated_methods_are_those_that_share_neither_weights_nor_advantages() -> None:
    assert ISOLATED == [Method.BILATERAL, Method.UNILATERAL_FROZEN, Method.UNILATERAL_SCRIPTED]


@pytest.mark.parametrize("method", list(Method))
def test_every_method_spends_the_same_agent_dialogues_and_updates(runs: dict[Method, Any], method: Method) -> None:
    run, result, _ = runs[method]
    agent = run.learners[Role.AGENT]
    assert len(agent.updates) == 1
    assert len(result.steps) == 1
    views = run.settings.dialogues_per_step * len(agent.plays)
    assert len(agent.trainer.step_advantages) == views


@pytest.mark.parametrize("method", list(Method))
def test_a_method_exports_an_adapter_for_each_role_that_learned(runs: dict[Method, Any], method: Method) -> None:
    run, result, _ = runs[method]
    learning = set(plan_of(method).learning)
    assert set(result.adapters) == set(result.manifests) == set(result.metrics) == learning
    assert {path.name for path in result.adapters.values()} == {f"{role}@2" for role in learning}
    shared = len(run.learners) == 1 and len(learning) == 2
    if len(learning) == 2:
        assert (len({digest(path) for path in result.adapters.values()}) == 1) is shared


def test_the_frozen_partner_is_the_counterpart_of_the_start_and_nobody_else(runs: dict[Method, Any]) -> None:
    _, result, engine = runs[Method.UNILATERAL_FROZEN]
    assert {request.adapter for request, _ in engine.calls} == {"agent@2-step0", BASE}
    assert result.tokens_sampled[Role.COUNTERPART] > 0
    assert set(result.tokens_trained) == {Role.AGENT}


def test_a_frozen_partner_with_an_adapter_plays_with_it_and_keeps_every_byte(
    new_cotraining: New, new_engine: New, spy_on: New, base: BaseModelRef, tmp_path: Path
) -> None:
    name = AdapterName(role=Role.COUNTERPART, version=7)
    folder = tmp_path / str(name)
    initialise_adapter(base, name, AdapterSettings(rank=4, alpha=8), 3, folder)
    before, engine = digest(folder), spy_on(new_engine())
    run = new_cotraining(engine=engine, method=Method.UNILATERAL_FROZEN, start={Role.COUNTERPART: folder})
    run.run()
    assert {request.adapter for request, _ in engine.calls} == {"agent@2-step0", "counterpart@7"}
    assert digest(folder) == before
    assert engine.loaded_adapters() == frozenset()


def test_the_scripted_partner_costs_no_tokens(runs: dict[Method, Any]) -> None:
    _, result, engine = runs[Method.UNILATERAL_SCRIPTED]
    assert result.tokens_sampled[Role.COUNTERPART] == 0
    assert {request.adapter for request, _ in engine.calls} == {"agent@2-step0"}


def test_self_play_is_one_adapter_in_both_chairs_and_meets_nobody_else(runs: dict[Method, Any]) -> None:
    run, result, engine = runs[Method.SELF_PLAY]
    assert run.learners[Role.AGENT].plays == BOTH
    assert {request.adapter for request, _ in engine.calls} == {"agent@2-step0"}
    assert all(tokens > 0 for tokens in result.tokens_sampled.values())
    assert result.steps[0].dialogues == run.settings.dialogues_per_step


@pytest.mark.parametrize("advantage", ["group", "running"])
@pytest.mark.parametrize("method", ISOLATED)
def test_rule_2_holds_for_every_method_that_claims_isolation(
    new_cotraining: New, graded: Any, method: Method, advantage: str
) -> None:
    """The other role's rewards, changed by any amount, change no bit of the agent's update."""
    plain, changed = (
        new_cotraining(scenario, method=method, advantage=advantage, joint_share=1.0).run()
        for scenario in (graded(), graded({Role.COUNTERPART: -1e3}, {Role.COUNTERPART: 7.0}))
    )
    assert digest(plain.adapters[Role.AGENT]) == digest(changed.adapters[Role.AGENT])


@pytest.mark.parametrize("method", [Method.BILATERAL_SHARED_ADVANTAGE, Method.BILATERAL_SHARED_ADAPTER])
def test_the_ablations_break_that_rule_which_is_what_they_are_for(
    new_cotraining: New, graded: Any, method: Method
) -> None:
    plain, changed = (
        new_cotraining(scenario, method=method, joint_share=1.0).run()
        for scenario in (graded(), graded({Role.COUNTERPART: -1.0}, {Role.COUNTERPART: 0.5}))
    )
    assert digest(plain.adapters[Role.AGENT]) != digest(changed.adapters[Role.AGENT])


def test_rule_1_a_unilateral_run_has_no_counterpart_to_change(runs: dict[Method, Any]) -> None:
    for method in (Method.UNILATERAL_FROZEN, Method.UNILATERAL_SCRIPTED):
        run, result, _ = runs[method]
        assert set(run.learners) == {Role.AGENT}
        assert not (run.output / "counterpart@2").exists()
        assert all(
            ".lora_" in name for name, p in run.learners[Role.AGENT].model.named_parameters() if p.requires_grad
        )
        assert load_file(result.adapters[Role.AGENT] / WEIGHTS_FILE)


def test_frozen_counterparts_that_are_given_are_met_and_learn_nothing(
    new_cotraining: New, new_engine: New, spy_on: New, base: BaseModelRef, tmp_path: Path
) -> None:
    folders = []
    for version in (7, 8):
        name = AdapterName(role=Role.COUNTERPART, version=version)
        initialise_adapter(base, name, AdapterSettings(rank=4, alpha=8), version, tmp_path / str(name))
        folders.append(tmp_path / str(name))
    before, engine = [digest(folder) for folder in folders], spy_on(new_engine())
    options = {"joint_share": 0.0, "scenarios_per_step": 12, "league_power": 0.0}
    new_cotraining(engine=engine, frozen=folders, **options).run()
    assert {"counterpart@7", "counterpart@8"} <= {request.adapter for request, _ in engine.calls}
    assert [digest(folder) for folder in folders] == before


def test_frozen_partners_of_a_method_without_a_pool_are_refused(new_cotraining: New, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="self-play has no pool for frozen partners to join"):
        new_cotraining(method=Method.SELF_PLAY, frozen=[tmp_path])


def test_validation_watches_and_changes_nothing(new_cotraining: New) -> None:
    watched, unwatched = (
        new_cotraining(steps=3, validation_every=every, validation_scenarios=3).run() for every in (2, 0)
    )
    assert [step.validation_talks for step in watched.steps] == [3, 0, 3]
    assert [step.validation_success is None for step in watched.steps] == [False, True, False]
    assert all(digest(watched.adapters[role]) == digest(unwatched.adapters[role]) for role in Role)


def test_a_run_that_goes_wrong_stops_with_its_step_and_reason(new_cotraining: New) -> None:
    run = new_cotraining(steps=3, health={"window": 1, "max_length_growth": 1.0001, "max_language_drift": 1e-9})
    with pytest.raises(TrainingHalted, match=r"step [23]: (language drift|length growth): .* the limit is "):
        run.run()


def test_a_league_lets_earlier_counterparts_play_and_keeps_no_more_than_asked(
    new_cotraining: New, new_engine: New, spy_on: New
) -> None:
    engine = spy_on(new_engine())
    run = new_cotraining(
        engine=engine, steps=5, joint_share=0.0, scenarios_per_step=6, league_every=1, league_size=2, league_power=0.0
    )
    result = run.run()
    played = {request.adapter for request, _ in engine.calls}
    copies = {
        name
        for step in result.steps
        for name in step.success_against
        if name.startswith("counterpart@2-step") and name != f"counterpart@2-step{step.step - 1}"
    }
    assert copies
    assert copies <= played
    assert len(list((run.output / "league").iterdir())) == 2
    assert engine.loaded_adapters() == frozenset()
