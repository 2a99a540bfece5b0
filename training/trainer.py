"""TRL's GRPO trainer, fed with one role's own advantages and kept from wasting work.

What differs from :class:`trl.GRPOTrainer`, and why:

* Advantages come from :mod:`training.advantages`, computed from this role's rewards alone, and may differ by turn.
* The importance ratio is taken against the log-probabilities of the engine that sampled, not the trainer's own: where
  the two disagree (another kernel, another precision) the ratio corrects for it. It is bounded per token, by the clip
  and by ``delta`` (two-sided clipping, arXiv 2505.07291); a sequence-level bound would drop the long dialogues.
* Dialogues with nothing to teach are left out of the forward passes, and micro-batches hold dialogues of like length,
  cut to the longest of them.
* The frozen base's log-probabilities are taken per micro-batch and kept: they give the KL and the language drift.

Left out on purpose: everything that needs to know about roles, scenarios or files.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

Batch = dict[str, Any]


class RoleTrainer(GRPOTrainer):
    """``step_advantages`` must be set by the rollout function: one list of length C per dialogue of this process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.step_advantages: list[list[float]] = []
        self.logprob_gaps: list[tuple[float, float]] = []
        self.own_likelihoods: list[tuple[float, int]] = []
        self._parts: list[Batch] = []
        self._last_logprobs: torch.Tensor | None = None

    def _generate_and_score_completions(self, inputs: Any) -> Batch:
        # The reference is asked for in _prepare_inputs, where the padding of the whole step is gone.
        beta, self.beta = self.beta, 0.0
        try:
            output: Batch = super()._generate_and_score_completions(inputs)
        finally:
            self.beta = beta
        width = output["completion_ids"].shape[1]
        rows = [row + [0.0] * (width - len(row)) for row in self.step_advantages]
        output["advantages"] = torch.tensor(rows, device=output["completion_ids"].device)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        parts: int = self.args.steps_per_generation  # type: ignore[attr-defined]
        if self._step % parts == 0:
            whole = self._generate_and_score_completions(generation_batch)
            self._parts = split_tensor_dict(_by_length(whole), parts)
        part = self._parts[self._step % parts]
        # TRL gathers rows: every process must keep equally many, and at least one to take part with.
        rows = max([1, *gather_object([int(_own(part).any(1).sum())])])
        inputs = _trimmed(part, rows)
        inputs["old_per_token_logps"] = inputs["sampling_per_token_logps"]
        inputs["ref_per_token_logps"] = self._reference(inputs)
        return inputs

    def _reference(self, inputs: Batch) -> torch.Tensor:
        """The frozen base's log-probabilities of the completion, [rows, C]; notes the own tokens' likelihood."""
        model = self.accelerator.unwrap_model(self.model)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad(), model.disable_adapter():
            reference = super()._get_per_token_logps_and_entropies(
                model, ids, attended, inputs["completion_ids"].shape[1]
            )[0]
        own = _own(inputs)
        self.own_likelihoods.append((reference[own].sum().item(), int(own.sum())))
        return reference

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if torch.is_grad_enabled():
            self._last_logprobs = result[0].detach()
        return result

    def _compute_loss(self, model: Any, inputs: Batch) -> Any:
        loss = super()._compute_loss(model, inputs)
        if self._last_logprobs is not None:
            gap = (self._last_logprobs - inputs["sampling_per_token_logps"]).abs()[_own(inputs)]
            if gap.numel():
                self.logprob_gaps.append((gap.mean().item(), gap.max().item()))
        return loss


def _own(inputs: Batch) -> torch.Tensor:
    return (inputs["completion_mask"] * inputs["tool_mask"]).bool()


def _by_length(batch: Batch) -> Batch:
    """Rows in order of length, those without an own token last. TRL shuffles here; one update takes all anyhow."""
    lengths = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)
    lengths[~_own(batch).any(1)] = 0
    order = lengths.argsort(descending=True, stable=True)
    return {key: value[order] if _has_rows(value, len(order)) else value for key, value in batch.items()}


def _trimmed(batch: Batch, rows: int) -> Batch:
    """The first ``rows`` dialogues (those that teach something come first), without their common padding."""
    size = len(batch["prompt_ids"])
    kept = {key: value[:rows] if _has_rows(value, size) else value for key, value in batch.items()}
    prompt = int(kept["prompt_mask"].sum(1).max())
    completion = int(kept["completion_mask"].sum(1).max())
    for key in ("prompt_ids", "prompt_mask"):
        kept[key] = kept[key][:, kept[key].shape[1] - prompt :]
    for key in ("completion_ids", "completion_mask", "tool_mask", "sampling_per_token_logps", "advantages"):
        kept[key] = kept[key][:, :completion]
    return kept


def _has_rows(value: Any, rows: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape[0] == rows
