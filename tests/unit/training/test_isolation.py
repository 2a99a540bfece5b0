"""The six isolation rules of co-training, each by its own test (or tests), named after it.

A role's update may depend on what was said to it and on its own rewards, and on nothing else of the other
role: not its weights, not its optimizer, not its rewards, not its private view.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import TrainerCallback
from trl import GRPOTrainer

from negotiation.adapter import WEIGHTS_FILE, AdapterName
from negotiation.catalogue import NAMES, scenario_named
from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.generation import BASE, GenerationRequest, Sampling
from negotiation.roles import Role
from negotiation.scenario import Context
from negotiation.telesales import MINOR
from negotiation.transcript import ChatFormat
from training.artifacts import BaseModelRef, initialise_adapter
from training.config import TrainingSettings
from training.joint_rollout import Dialogue, ModelPlayer, Table, play
from training.learner import Group, RoleLearner, TrainingHalted
from training.views import TrainingView, training_view

New = Callable[..., Any]


def weights_digest(run: Any, role: Role) -> str:
    return hashlib.sha256((run.adapters[role] / WEIGHTS_FILE).read_bytes()).hexdigest()


# --- Rule 1: an agent step leaves every byte of the counterpart's state unchanged, and the reverse ---------------


def state_of(learner: RoleLearner) -> dict[str, bytes]:
    """Every byte that a step could change: weights, optimizer and scheduler."""
    state = {f"weight {name}": p.detach().numpy().tobytes() for name, p in learner.model.named_parameters()}
    optimizer, scheduler = learner.trainer.optimizer, learner.trainer.lr_scheduler
    if optimizer is not None:
        for index, values in optimizer.state_dict()["state"].items():
            for key, value in values.items():
                state[f"optimizer {index} {key}"] = torch.as_tensor(value).numpy().tobytes()
        state["groups"] = repr(optimizer.state_dict()["param_groups"]).encode()
    if scheduler is not None:
        state["scheduler"] = repr(scheduler.state_dict()).encode()
    return state


class StepWatch(TrainerCallback):
    """Compares both learners' state from the start of one learner's loss to the end of its step."""

    def __init__(self, own: RoleLearner, other: RoleLearner) -> None:
        self.own, self.other = own, other
        self.changed: list[tuple[set[str], set[str]]] = []
        compute = own.trainer._compute_loss

        def watched(model: Any, inputs: Any) -> Any:
            self.before = state_of(own), state_of(other)
            return compute(model, inputs)

        own.trainer._compute_loss = watched
        own.trainer.add_callback(self)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        after = state_of(self.own), state_of(self.other)
        own, other = (
            {key for key in {*now, *then} if now.get(key) != then.get(key)}
            for then, now in zip(self.before, after, strict=True)
        )
        self.changed.append((own, other))


def test_rule_1_a_step_of_one_role_leaves_every_byte_of_the_other(new_cotraining: New) -> None:
    run = new_cotraining(steps=2)
    watches = {role: StepWatch(learner, run.learners[role.other]) for role, learner in run.learners.items()}
    run.run()
    for role, watch in watches.items():
        assert len(watch.changed) == 2
        for own, other in watch.changed:
            assert other == set()
            assert {"scheduler", "groups"} & own or any(key.startswith("optimizer") for key in own)
            assert any(key.startswith("weight") for key in own)
            assert all(".lora_" in key for key in own if key.startswith("weight")), role


def test_rule_1_base_weights_never_change(finished: Any, base: BaseModelRef) -> None:
    stored = load_file(base.path / "model.safetensors")
    for learner in finished.cotraining.learners.values():
        frozen = {
            name.replace("base_model.model.", "").replace(".base_layer", ""): parameter
            for name, parameter in learner.model.named_parameters()
            if not parameter.requires_grad
        }
        assert set(stored) <= set(frozen)
        assert all(torch.equal(frozen[name], tensor) for name, tensor in stored.items())
    assert hashlib.sha256((base.path / "model.safetensors").read_bytes()).hexdigest() == base.sha256


def test_rule_1_the_learners_share_no_memory(finished: Any) -> None:
    agent, counterpart = (
        {p.untyped_storage().data_ptr() for p in learner.model.parameters()}
        for learner in finished.cotraining.learners.values()
    )
    assert agent.isdisjoint(counterpart)


def test_rule_1_an_optimizer_holds_exactly_its_own_roles_adapter(finished: Any) -> None:
    for learner in finished.cotraining.learners.values():
        optimized = [id(p) for group in learner.trainer.optimizer.param_groups for p in group["params"]]
        adapter = [id(p) for name, p in learner.model.named_parameters() if ".lora_" in name and p.requires_grad]
        assert Counter(optimized) == Counter(adapter)
        assert len(adapter) == 2 * 7 * 2


def test_rule_1_weights_touched_while_the_other_works_stop_the_run(new_cotraining: New) -> None:
    run = new_cotraining()
    agent, meet = run.learners[Role.AGENT], run.learners[Role.AGENT]._meet

    def meddling(step: int, groups: Sequence[Group]) -> Sequence[TrainingView]:
        views = meet(step, groups)
        with torch.no_grad():
            next(p for p in agent.model.parameters() if p.requires_grad).add_(1.0)
        return views

    agent._meet = meddling
    with pytest.raises(TrainingHalted, match="agent's adapter or optimizer changed while the other"):
        run.run()


# --- Rule 2: the other role's rewards change nothing in a role's update, bitwise ---------------------------------


@pytest.fixture(scope="module")
def plain(new_cotraining: New) -> dict[float, Any]:
    """Runs with untouched rewards, by share of joint groups.

    Without joint groups two steps can be compared: nothing that one role says ever reaches the other.
    """
    return {share: new_cotraining(joint_share=share, steps=steps).run() for share, steps in ((1.0, 1), (0.0, 2))}


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(("scale", "shift"), [(-1.0, 0.0), (1e6, 3.0), (0.0, 0.25)])
def test_rule_2_the_others_rewards_change_nothing_in_an_update(
    new_cotraining: New, graded: Any, plain: dict[float, Any], role: Role, scale: float, shift: float
) -> None:
    changed = new_cotraining(graded({role.other: scale}, {role.other: shift})).run()
    assert weights_digest(changed, role) == weights_digest(plain[1.0], role)
    ours, before = (run.steps[0].updates[role] for run in (changed, plain[1.0]))
    assert ours == before
    if scale <= 0:
        assert weights_digest(changed, role.other) != weights_digest(plain[1.0], role.other)


@pytest.mark.parametrize("role", list(Role))
def test_rule_2_holds_over_several_steps_where_the_roles_do_not_meet(
    new_cotraining: New, graded: Any, plain: dict[float, Any], role: Role
) -> None:
    changed = new_cotraining(graded({role.other: -7.0}), joint_share=0.0, steps=2).run()
    assert weights_digest(changed, role) == weights_digest(plain[0.0], role)
    assert weights_digest(changed, role.other) != weights_digest(plain[0.0], role.other)


# --- Rule 3: the gradient with respect to the other's tokens' log-probabilities is exactly zero ------------------


def loss_of(learner: RoleLearner, inputs: dict[str, torch.Tensor], logps: torch.Tensor) -> torch.Tensor:
    """The learner's own loss, with these per-token log-probabilities in place of the model's."""
    trainer = learner.trainer
    with pytest.MonkeyPatch.context() as patch:
        given_logps = logps, torch.zeros_like(logps), None
        patch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", lambda *_, **__: given_logps)
        loss: torch.Tensor = type(trainer)._compute_loss(trainer, trainer.model, inputs)
        return loss


@pytest.mark.parametrize("role", list(Role))
def test_rule_3_the_gradient_of_the_others_tokens_is_exactly_zero(finished: Any, role: Role) -> None:
    learner = finished.cotraining.learners[role]
    for inputs in finished.inputs[role]:
        own = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        heard = inputs["completion_mask"].bool() & ~own
        assert heard.any()
        assert own.any()
        logps = inputs["sampling_per_token_logps"].clone().requires_grad_()
        loss_of(learner, inputs, logps).backward()
        assert logps.grad is not None
        assert torch.count_nonzero(logps.grad[~own]) == 0
        credited = own & (inputs["advantages"] != 0)
        assert torch.count_nonzero(logps.grad[credited]) == credited.sum() > 0


@pytest.mark.parametrize("role", list(Role))
@given(seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_rule_3_whatever_the_others_tokens_log_probabilities_the_loss_is_the_same(
    finished: Any, role: Role, seed: int
) -> None:
    learner, inputs = finished.cotraining.learners[role], finished.inputs[role][0]
    own = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
    logps = inputs["sampling_per_token_logps"]
    noise = -20 * torch.rand(logps.shape, generator=torch.Generator().manual_seed(seed))
    plain, disturbed = (loss_of(learner, inputs, x) for x in (logps, torch.where(own, logps, noise)))
    assert torch.equal(plain, disturbed)


# --- Rule 4: no private value of one role in any token of the other role's prompt ---------------------------------

WORDS = ("good morning", "tell me more", "and what would that come to", "I am still thinking", "let us see")


def redraw(context: Context, role: Role, seed: int) -> Context:
    """The same negotiation, but ``role`` privately knows something else."""
    scenario = scenario_named(context.scenario)
    if isinstance(scenario, DealOrNoDeal):
        # The pool and its rules are symmetric, so completing the mirrored context redraws either side.
        mirrored = {r: context.views[role if r is Role.COUNTERPART else role.other] for r in Role}
        drawn = scenario.complete(context.model_copy(update={"views": mirrored}), seed)
        views = {role: drawn.views[Role.COUNTERPART], role.other: context.views[role.other]}
        return context.model_copy(update={"views": views})
    if role is Role.COUNTERPART:
        return scenario.complete(context, seed)
    floors = {key: max(1, floor - (seed % 50 + 1) * MINOR) for key, floor in context.views[role]["floors"].items()}
    return context.model_copy(update={"views": {**context.views, role: {"floors": floors}}})


def played(engine: Any, name: str, context: Context, seed: int) -> Dialogue:
    players = {role: ModelPlayer(str(AdapterName(role=role, version=1))) for role in Role}
    return play(engine, scenario_named(name), [Table(context, players, seed)], Sampling(max_tokens=24)).dialogues[0]


def prompts_of(engine: Any, role: Role) -> list[tuple[int, ...]]:
    return [r.prompt_ids for r in engine.requests if AdapterName.parse(r.adapter).role is role]


def by_seed(request: GenerationRequest) -> str:
    return random.Random(request.sampling.seed).choice(WORDS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", list(Role))
@given(seed=st.integers(0, 10**6), other=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_rule_4_a_whole_dialogues_tokens_do_not_depend_on_the_others_view(
    reciter: New, name: str, role: Role, seed: int, other: int
) -> None:
    context = scenario_named(name).generate(seed)
    changed = redraw(context, role.other, other)
    engines = reciter(by_seed), reciter(by_seed)
    dialogues = [played(engine, name, c, seed) for engine, c in zip(engines, (context, changed), strict=True)]
    prompts = [prompts_of(engine, role) for engine in engines]
    assert prompts[0] == prompts[1] != []
    views = [training_view(dialogue, role) for dialogue in dialogues]
    assert (views[0].prompt_ids, views[0].completion_ids) == (views[1].prompt_ids, views[1].completion_ids)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", list(Role))
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_rule_4_a_system_prompt_needs_no_more_than_the_public_part_and_its_own_view(
    tokenizer: Any, name: str, role: Role, seed: int
) -> None:
    scenario, chat = scenario_named(name), ChatFormat(tokenizer)
    context = scenario.generate(seed)
    blind = context.model_copy(update={"views": {role: context.views[role]}})
    ids = [chat.opening(scenario.system_prompt(role, c)) for c in (context, blind)]
    assert ids[0] == ids[1]


def test_rule_4_marked_private_values_show_in_their_owners_tokens_only(reciter: New, tokenizer: Any) -> None:
    scenario = scenario_named("telesales")
    drawn = scenario.generate(4)
    floors = {vehicle["id"]: 4_321 * MINOR for vehicle in drawn.public["vehicles"]}
    customer = {**drawn.views[Role.COUNTERPART], "budget": 98_765 * MINOR, "objection": "mileage", "patience": 7}
    context = drawn.model_copy(update={"views": {Role.AGENT: {"floors": floors}, Role.COUNTERPART: customer}})
    engine = reciter(by_seed)
    played(engine, "telesales", context, 1)
    texts = {r: [tokenizer.decode(list(ids)) for ids in prompts_of(engine, r)] for r in Role}
    assert all("4321" in text and "98765" not in text and "mileage" not in text for text in texts[Role.AGENT])
    assert all("4321" not in text and "98765" in text for text in texts[Role.COUNTERPART])
    assert all(texts.values())


def test_rule_4_an_offer_under_the_floor_is_not_shown_to_the_customer(reciter: New, tokenizer: Any) -> None:
    scenario = scenario_named("telesales")
    context = scenario.generate(0)
    vehicle = context.public["vehicles"][0]["id"]
    engine = reciter(lambda request: f"take it [offer {vehicle} 77]" if "agent" in request.adapter else "go on")
    dialogue = played(engine, "telesales", context, 1)
    assert any(turn.blocked for turn in dialogue.state.turns)
    assert not any("77]" in tokenizer.decode(list(ids)) for ids in prompts_of(engine, Role.COUNTERPART))


# --- Rule 5: tokens trained on are the tokens sampled --------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_rule_5_the_trainer_gets_the_very_tokens_and_log_probabilities_that_were_sampled(
    finished: Any, role: Role
) -> None:
    def key(prompt: Any, ids: Any, logprobs: Any) -> tuple[Any, ...]:
        return tuple(prompt), tuple(ids), torch.tensor(logprobs, dtype=torch.float32).numpy().tobytes()

    sampled = Counter(
        key(request.prompt_ids, result.token_ids, result.logprobs)
        for request, result in finished.engine.calls
        if AdapterName.parse(request.adapter).role is role
    )
    trained: Counter[tuple[Any, ...]] = Counter()
    for inputs in finished.inputs[role]:
        for row in range(len(inputs["prompt_ids"])):
            prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
            real = inputs["completion_mask"][row].bool()
            ids = inputs["completion_ids"][row][real].tolist()
            mask = inputs["tool_mask"][row][real].tolist()
            logprobs = inputs["sampling_per_token_logps"][row][real].tolist()
            start = 0
            while start < len(ids):
                stop = next((i for i in range(start, len(ids)) if mask[i] != mask[start]), len(ids))
                if mask[start]:
                    trained[key([*prompt, *ids[:start]], ids[start:stop], logprobs[start:stop])] += 1
                start = stop
    assert trained == sampled
    assert sampled.total() > 16


# --- Rule 6: own checkpoints; either role can be resumed, frozen or replaced alone --------------------------------


def test_rule_6_each_role_has_its_own_directory(finished: Any) -> None:
    run = finished.cotraining
    working = {Path(learner.trainer.args.output_dir) for learner in run.learners.values()}
    exported = {path.resolve() for path in finished.result.adapters.values()}
    assert len(working) == len(exported) == 2
    assert {path.name for path in working} == set(Role)
    assert {path.name for path in exported} == {"agent@2", "counterpart@2"}


@pytest.mark.parametrize("role", list(Role))
def test_rule_6_either_role_goes_on_alone_from_its_exported_adapter(
    finished: Any, new_cotraining: New, role: Role
) -> None:
    exported = load_file(finished.result.adapters[role] / WEIGHTS_FILE)
    run = new_cotraining(start={role: finished.result.adapters[role], role.other: None}, version=3)
    resumed, fresh = run.learners[role], run.learners[role.other]
    assert resumed.start_sha256 == finished.cotraining.learners[role].adapter_sha256()
    loaded = {name: p for name, p in resumed.model.named_parameters() if p.requires_grad}
    assert len(loaded) == len(exported)
    for name, tensor in exported.items():
        parameter = loaded[name.replace(".weight", ".default.weight")]
        assert parameter.detach().numpy().tobytes() == tensor.numpy().tobytes()
    assert all(torch.count_nonzero(p) == 0 for name, p in fresh.model.named_parameters() if ".lora_B." in name)
    result = run.run()
    assert weights_digest(result, role) != weights_digest(finished.result, role)
    assert {str(manifest.name) for manifest in result.manifests.values()} == {"agent@3", "counterpart@3"}


@pytest.mark.parametrize("role", list(Role))
def test_rule_6_a_role_learns_against_a_frozen_partner(
    base: BaseModelRef,
    engine: Any,
    tiny_settings: Callable[..., TrainingSettings],
    graded: Any,
    tmp_path: Path,
    role: Role,
) -> None:
    """The learner of one role needs nothing of the other's but what it says."""
    options, scenario = tiny_settings(), graded()
    frozen = AdapterName(role=role.other, version=1)
    initialise_adapter(base, frozen, options.adapter, 5, tmp_path / str(frozen))
    engine.load_adapter(str(frozen), tmp_path / str(frozen))
    before = engine.fingerprint(str(frozen)), (tmp_path / str(frozen) / WEIGHTS_FILE).read_bytes()

    def meet(step: int, groups: Sequence[Group]) -> list[TrainingView]:
        players = {role: ModelPlayer(BASE), role.other: ModelPlayer(str(frozen))}
        tables = [Table(scenario.generate(index), players, row) for row, (_, index) in enumerate(groups)]
        rollout = play(engine, scenario, tables, Sampling(max_tokens=options.max_message_tokens))
        return [training_view(dialogue, role) for dialogue in rollout.dialogues]

    learner = RoleLearner(role, options, base, None, tmp_path / "learner", meet, lambda *_: None)
    learner.train()
    assert learner.adapter_sha256() != learner.start_sha256
    assert (engine.fingerprint(str(frozen)), (tmp_path / str(frozen) / WEIGHTS_FILE).read_bytes()) == before
