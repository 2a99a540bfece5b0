"""One learner: a TRL GRPO trainer with its own model copy, adapter, optimizer and checkpoint folder.

Everything that could mix the roles is absent by construction: the other role's weights are not in this model,
the optimizer is built from this adapter's parameters, and the only thing that comes in from the joint rollout
is this role's own :class:`~training.views.TrainingView`. The KL reference is the warm-started base model (this
model with its adapter switched off).

A learner plays one role; only for self-play and the shared-adapter ablation does one learner play both.
"""

from __future__ import annotations

import hashlib
import logging
import math
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from peft import PeftModel
from transformers import (
    AutoTokenizer,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from negotiation.adapter import MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest, AdapterName
from negotiation.roles import Role
from training.advantages import GroupRelative, RunningBaseline, dead_share
from training.artifacts import BaseModelRef, export_adapter, file_sha256, load_base, load_weights, lora_config
from training.config import TrainingSettings
from training.grpo import group_prompts, grpo_arguments
from training.records import UpdateMetrics
from training.trainer import RoleTrainer
from training.views import TrainingView

logger = logging.getLogger(__name__)
Group = tuple[Role, int]
"""A role and the number of the scenario that it is to play in."""
warnings.filterwarnings("ignore", message=".*rollout_func.*experimental.*")


class TrainingHalted(RuntimeError):
    """A health limit was passed, or an isolation rule broke; the message says which, where, and what to do."""


class RoleLearner:
    """Trains one adapter. ``meet(step, groups)`` brings the views of the joint rollout, in the groups' order.

    ``plays``: the roles that this adapter speaks for; default ``role`` alone.
    """

    def __init__(
        self,
        role: Role,
        settings: TrainingSettings,
        base: BaseModelRef,
        start: Path | None,
        output: Path,
        meet: Callable[[int, Sequence[Group]], Sequence[TrainingView]],
        report: Callable[[Role, UpdateMetrics], None],
        plays: tuple[Role, ...] = (),
    ) -> None:
        self.role, self.settings, self.base = role, settings, base
        self.plays = plays or (role,)
        self._meet, self._report = meet, report
        self.updates: list[UpdateMetrics] = []
        self.tokens_trained, self.update_seconds = 0, 0.0
        self.estimators = {
            player: GroupRelative() if settings.advantage == "group" else RunningBaseline() for player in self.plays
        }
        self._dead_share, self._own_tokens, self._step_tokens, self._update_began = 0.0, 0.0, 0, 0.0
        torch.manual_seed(settings.seed * 2 + (role is Role.COUNTERPART))
        self.trainer = RoleTrainer(
            model=load_base(base),
            processing_class=AutoTokenizer.from_pretrained(base.path),
            reward_funcs=own_reward,
            train_dataset=Dataset.from_dict({"prompt": list(group_prompts(settings, self.plays))}),
            peft_config=lora_config(settings.adapter),
            rollout_func=self._rollout,
            callbacks=[_Logs(self._on_log)],
            args=grpo_arguments(settings, role, len(self.plays), output),
        )
        # Progress is reported by ``report``; the trainer would print every step's logs besides.
        self.trainer.remove_callback(PrinterCallback)
        assert isinstance(self.trainer.model, PeftModel), "GRPOTrainer wraps the model for its adapter"
        self.model: PeftModel = self.trainer.model
        if start is not None:
            load_weights(self.model, "default", start, base)
        self._check_trainable()
        self.start_sha256 = self.adapter_sha256()

    def train(self, checkpoint: Path | None = None) -> None:
        """Run every step, or those after ``checkpoint``. Raises TrainingHalted, and whatever a rollout raises."""
        self.trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        alive = any(update.zero_variance_groups < 1 for update in self.updates)
        if alive and self.adapter_sha256() == self.start_sha256:
            raise TrainingHalted(f"the {self.role}'s weights did not move in {self.settings.steps} steps")

    def adapter_sha256(self) -> str:
        """Digest of the trainable weights."""
        return _digest(p for _, p in sorted(self.model.named_parameters()) if p.requires_grad)

    def base_sha256(self) -> str:
        """Digest of the frozen weights."""
        return _digest(p for _, p in sorted(self.model.named_parameters()) if not p.requires_grad)

    def optimizer_sha256(self) -> str:
        """Digest of the optimizer's and the scheduler's state; empty state before the first step."""
        if self.trainer.optimizer is None or self.trainer.lr_scheduler is None:
            return hashlib.sha256(b"").hexdigest()
        state = self.trainer.optimizer.state_dict()["state"]
        tensors = (torch.as_tensor(v) for key in sorted(state) for _, v in sorted(state[key].items()))
        return _digest(tensors, repr(self.trainer.lr_scheduler.state_dict()))

    def export(self, name: AdapterName, directory: Path) -> AdapterManifest:
        return export_adapter(self.model, "default", name, self.base.name, self.base.sha256, directory)

    def save(self, directory: Path) -> None:
        """Everything that the next step depends on: adapter, optimizer, schedule and counters."""
        trainer = self.trainer
        trainer.save_model(str(directory))
        trainer._save_optimizer_and_scheduler(str(directory))
        trainer.state.save_to_json(str(directory / "trainer_state.json"))

    def state(self) -> dict[str, Any]:
        """The counters and running baselines that go with :meth:`save`."""
        return {
            "tokens_trained": self.tokens_trained,
            "update_seconds": self.update_seconds,
            "updates": [asdict(update) for update in self.updates],
            "estimators": {player: estimator.state() for player, estimator in self.estimators.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.tokens_trained, self.update_seconds = state["tokens_trained"], state["update_seconds"]
        self.updates = [UpdateMetrics(**update) for update in state["updates"]]
        for player, estimator in self.estimators.items():
            estimator.restore(state["estimators"][player])

    def publish(self, name: AdapterName, directory: Path) -> AdapterManifest:
        """Export once, by the main process; a repeated call must find the same weights. Raises FileExistsError."""
        if self.trainer.accelerator.is_main_process:
            staged = directory.with_name(f".{directory.name}.published")
            shutil.rmtree(staged, ignore_errors=True)
            self.export(name, staged)
            if not directory.exists():
                staged.rename(directory)
            elif file_sha256(directory / WEIGHTS_FILE) != file_sha256(staged / WEIGHTS_FILE):
                raise FileExistsError(f"{directory} exists with other weights: adapter versions are immutable")
            shutil.rmtree(staged, ignore_errors=True)
        self.trainer.accelerator.wait_for_everyone()
        return AdapterManifest.model_validate_json((directory / MANIFEST_FILE).read_bytes())

    def _rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        step = trainer.state.global_step
        before = self.adapter_sha256(), self.optimizer_sha256()
        groups = [(Role(role), int(index)) for role, index in (prompt.split(":") for prompt in prompts)]
        views = self._meet(step, groups)
        self._update_began = time.monotonic()
        if (self.adapter_sha256(), self.optimizer_sha256()) != before:
            raise TrainingHalted(f"the {self.role}'s adapter or optimizer changed while the other role was at work")
        if len(views) != len(prompts):
            raise TrainingHalted(f"{len(prompts)} dialogues were asked for, {len(views)} came back")
        advantages = self._advantages(groups, views)
        own = [sum(view.env_mask) for view in views]
        trained = sum(n for n, advantage in zip(own, advantages, strict=True) if advantage is not None)
        dead = dead_share(advantages, self.settings.group_size)
        # All processes have equally many dialogues, so that means of their means are means.
        parts = gather_object([(dead, sum(own) / len(own), trained)])
        self._dead_share, self._own_tokens = (sum(part[n] for part in parts) / len(parts) for n in (0, 1))
        self._step_tokens = sum(part[2] for part in parts)
        self.tokens_trained += self._step_tokens
        self.trainer.step_advantages = [
            _by_turn(advantage or 0.0, view.env_mask, self.settings.per_turn_credit)
            for view, advantage in zip(views, advantages, strict=True)
        ]
        return {
            "prompt_ids": [view.prompt_ids for view in views],
            "completion_ids": [view.completion_ids for view in views],
            "logprobs": [view.logprobs for view in views],
            # What teaches nothing is left out of the loss, its denominator and the KL.
            "env_mask": [
                view.env_mask if advantage is not None else [0] * len(view.env_mask)
                for view, advantage in zip(views, advantages, strict=True)
            ],
            "own_reward": [view.reward for view in views],
        }

    def _advantages(self, groups: Sequence[Group], views: Sequence[TrainingView]) -> list[float | None]:
        """In the views' order; each role by its own estimator."""
        found: list[float | None] = [None] * len(views)
        for player, estimator in self.estimators.items():
            rows = [row for row, (role, _) in enumerate(groups) if role is player]
            estimated = estimator.advantages([views[row].reward for row in rows], self.settings.group_size)
            for row, advantage in zip(rows, estimated, strict=True):
                given = views[row].pooled_advantage
                found[row] = advantage if given is None else given.value
        return found

    def _on_log(self, step: int, logs: dict[str, float]) -> None:
        if "frac_reward_zero_std" not in logs:
            return
        gaps, self.trainer.logprob_gaps = self.trainer.logprob_gaps, []
        mean = sum(g[0] for g in gaps) / len(gaps) if gaps else 0.0
        likelihoods, self.trainer.own_likelihoods = self.trainer.own_likelihoods, []
        tokens = sum(count for _, count in likelihoods)
        self.update_seconds += time.monotonic() - self._update_began
        update = UpdateMetrics(
            step=step,
            reward=logs.get("reward", math.nan),
            reward_std=logs.get("reward_std", 0.0),
            # TRL's own count takes a group with fewer than two rewards for a live one.
            zero_variance_groups=self._dead_share,
            loss=logs.get("loss", 0.0),
            kl=logs.get("kl", 0.0),
            entropy=logs.get("entropy", 0.0),
            grad_norm=logs.get("grad_norm", 0.0),
            logprob_gap_mean=mean,
            logprob_gap_max=max((g[1] for g in gaps), default=0.0),
            base_nll=-sum(total for total, _ in likelihoods) / tokens if tokens else math.nan,
            own_tokens=self._own_tokens,
            tokens_trained=self._step_tokens,
            adapter_sha256=self.adapter_sha256(),
        )
        self.updates.append(update)
        self._report(self.role, update)
        if mean > self.settings.max_logprob_gap:
            raise TrainingHalted(
                f"{self.role}, step {step}: sampler and trainer differ by {mean:.4f} nats per token, the limit is "
                f"{self.settings.max_logprob_gap}: check that the engine serves the adapter being trained"
            )

    def _check_trainable(self) -> None:
        names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        if not names or any(".lora_" not in name or ".default." not in name for name in names):
            raise TrainingHalted(f"the {self.role} would train {names[:3]}: only its own LoRA weights may")


def _by_turn(advantage: float, own: Sequence[int], discount: float) -> list[float]:
    """The advantage at every token, times ``discount`` for each own turn between it and the last."""
    if discount == 1:
        return [advantage] * len(own)
    turns, inside, found = 0, False, [0.0] * len(own)
    for place in range(len(own) - 1, -1, -1):
        if own[place]:
            found[place] = advantage * discount**turns
        elif inside:
            turns += 1
        inside = bool(own[place])
    return found


def own_reward(own_reward: list[float | None], **_: Any) -> list[float | None]:
    """The role's own reward as scored by the scenario; None leaves a dialogue out of its group."""
    return own_reward


def _digest(tensors: Any, extra: str = "") -> str:
    digest = hashlib.sha256(extra.encode())
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class _Logs(TrainerCallback):
    def __init__(self, report: Callable[[int, dict[str, float]], None]) -> None:
        self.report = report

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        self.report(state.global_step, {k: float(v) for k, v in (logs or {}).items() if v is not None})
