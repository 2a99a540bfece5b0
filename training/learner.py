"""One role's learner: a TRL GRPO trainer with its own model copy, adapter, optimizer and checkpoint folder.

Everything that could mix the roles is absent by construction: the other role's weights are not in this model,
the optimizer is built from this adapter's parameters, and the only thing that comes in from the joint rollout
is this role's own :class:`~training.views.TrainingView`. Rewards are normalised within groups of one scenario
and one role. The KL reference is the warm-started base model (this model with its adapter switched off).
"""

from __future__ import annotations

import hashlib
import logging
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
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
from trl import GRPOConfig, GRPOTrainer

from negotiation.adapter import AdapterManifest, AdapterName
from negotiation.roles import Role
from training.artifacts import BaseModelRef, export_adapter, load_base, load_weights, lora_config
from training.config import TrainingSettings
from training.views import TrainingView

logger = logging.getLogger(__name__)
_NO_SPREAD = 1e-8
warnings.filterwarnings("ignore", message=".*rollout_func.*experimental.*")


class TrainingHalted(RuntimeError):
    """A health limit was passed, or an isolation rule broke; the message says which, where, and what to do."""


@dataclass(frozen=True)
class UpdateMetrics:
    """One optimizer step of one role. ``logprob_gap`` is |sampler - trainer| in nats per own token.

    ``reward`` is NaN where the role never spoke; ``zero_variance_groups`` is a share.
    """

    step: int
    reward: float
    reward_std: float
    zero_variance_groups: float
    loss: float
    kl: float
    entropy: float
    grad_norm: float
    logprob_gap_mean: float
    logprob_gap_max: float
    adapter_sha256: str


class RoleTrainer(GRPOTrainer):
    """GRPOTrainer that also measures how far sampler and trainer disagree on the sampled tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logprob_gaps: list[tuple[float, float]] = []
        self._last_logprobs: torch.Tensor | None = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if torch.is_grad_enabled():
            self._last_logprobs = result[0].detach()
        return result

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        loss = super()._compute_loss(model, inputs)
        sampled = inputs.get("sampling_per_token_logps")
        if sampled is not None and self._last_logprobs is not None:
            mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
            gap = (self._last_logprobs - sampled).abs()[mask]
            if gap.numel():
                self.logprob_gaps.append((gap.mean().item(), gap.max().item()))
        return loss


class RoleLearner:
    """Trains one role. ``meet(step, scenario_indices)`` brings this role's views of the joint rollout."""

    def __init__(
        self,
        role: Role,
        settings: TrainingSettings,
        base: BaseModelRef,
        start: Path | None,
        output: Path,
        meet: Callable[[int, Sequence[int]], Sequence[TrainingView]],
        report: Callable[[Role, UpdateMetrics], None],
    ) -> None:
        self.role, self.settings, self.base = role, settings, base
        self._meet, self._report = meet, report
        self.updates: list[UpdateMetrics] = []
        self.tokens_trained = 0
        self._dead_share = 0.0
        learner = settings.learner(role)
        micro = forward_batch(settings)
        torch.manual_seed(settings.seed * 2 + (role is Role.COUNTERPART))
        indices = [str(i) for i in range(settings.steps * settings.scenarios_per_step)]
        self.trainer = RoleTrainer(
            model=load_base(base),
            processing_class=AutoTokenizer.from_pretrained(base.path),
            reward_funcs=own_reward,
            train_dataset=Dataset.from_dict({"prompt": indices}),
            peft_config=lora_config(settings.adapter),
            rollout_func=self._rollout,
            callbacks=[_Logs(self._on_log)],
            args=GRPOConfig(
                output_dir=str(output),
                seed=settings.seed,
                max_steps=settings.steps,
                per_device_train_batch_size=micro,
                gradient_accumulation_steps=settings.dialogues_per_step // micro,
                num_generations=settings.group_size,
                max_completion_length=1_000_000,
                learning_rate=learner.learning_rate,
                lr_scheduler_type="linear",
                max_grad_norm=learner.max_grad_norm,
                beta=learner.kl_coefficient,
                epsilon=learner.clip_range,
                loss_type="dapo",
                scale_rewards="group",
                temperature=1.0,
                shuffle_dataset=False,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=not torch.cuda.is_available(),
                save_strategy="no",
                logging_steps=1,
                report_to=[],
                disable_tqdm=True,
                remove_unused_columns=False,
            ),
        )
        # Progress is reported by ``report``; the trainer would print every step's logs besides.
        self.trainer.remove_callback(PrinterCallback)
        assert isinstance(self.trainer.model, PeftModel), "GRPOTrainer wraps the model for its adapter"
        self.model: PeftModel = self.trainer.model
        if start is not None:
            load_weights(self.model, "default", start)
        self._check_trainable()
        self.start_sha256 = self.adapter_sha256()

    def train(self) -> None:
        """Run every step. Raises TrainingHalted, and whatever a rollout raises."""
        self.trainer.train()
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

    def _rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        step = trainer.state.global_step
        before = self.adapter_sha256(), self.optimizer_sha256()
        views = self._meet(step, [int(prompt) for prompt in prompts])
        if (self.adapter_sha256(), self.optimizer_sha256()) != before:
            raise TrainingHalted(f"the {self.role}'s adapter or optimizer changed while the other role was at work")
        if len(views) != len(prompts):
            raise TrainingHalted(f"{len(prompts)} dialogues were asked for, {len(views)} came back")
        self.tokens_trained += sum(sum(view.env_mask) for view in views)
        self._dead_share = dead_share([view.reward for view in views], self.settings.group_size)
        return {
            "prompt_ids": [view.prompt_ids for view in views],
            "completion_ids": [view.completion_ids for view in views],
            "logprobs": [view.logprobs for view in views],
            "env_mask": [view.env_mask for view in views],
            "own_reward": [view.reward for view in views],
        }

    def _on_log(self, step: int, logs: dict[str, float]) -> None:
        if "frac_reward_zero_std" not in logs:
            return
        gaps, self.trainer.logprob_gaps = self.trainer.logprob_gaps, []
        mean = sum(g[0] for g in gaps) / len(gaps) if gaps else 0.0
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


def forward_batch(settings: TrainingSettings) -> int:
    """Dialogues per forward pass: the largest equal share of a step that stays within ``micro_batch``."""
    step, bound = settings.dialogues_per_step, settings.micro_batch or settings.dialogues_per_step
    return max(size for size in range(1, min(step, bound) + 1) if step % size == 0)


def dead_share(rewards: Sequence[float | None], group_size: int) -> float:
    """Share of groups without two different rewards: they give no gradient."""
    groups = [[r for r in rewards[i : i + group_size] if r is not None] for i in range(0, len(rewards), group_size)]
    return sum(not group or max(group) - min(group) < _NO_SPREAD for group in groups) / len(groups)


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
