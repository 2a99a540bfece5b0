"""Supervised fine-tuning (SFT) of one role on its own words, with early stopping on held-out perplexity.

Two uses of one loop: :func:`supervise` trains a LoRA adapter on a frozen base model and exports it as an immutable
version; :func:`fit` trains whatever requires gradients in a model, a fresh small Llama included. The loss is the mean
negative log-likelihood in nats over label tokens only, so a role never learns to say the other side's words.
After every epoch the held-out perplexity is measured; the weights of the best epoch are what is kept, those before
training included.

Run: ``sparring warm-start``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from pydantic import BaseModel, ConfigDict, Field
from torch.nn.utils.rnn import pad_sequence

from negotiation.adapter import AdapterManifest, AdapterName
from negotiation.transcript import Transcript
from training.artifacts import BaseModelRef, export_adapter, load_base, load_weights, lora_config
from training.config import AdapterSettings

IGNORED = -100
"""The label of a token that the loss leaves out (torch's own convention)."""
Row = tuple[list[int], list[int]]
"""Token ids and labels of one view, of equal length; a label is the token itself or IGNORED."""
_POOL = 16


class SupervisedSettings(BaseModel):
    """How a role learns from conversations."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(0, ge=0, description="Seed of weights, order and of what is held out.")
    epochs: int = Field(10, ge=1, description="Most passes over the training conversations.")
    patience: int = Field(2, ge=1, description="Epochs without a lower held-out perplexity after which it stops.")
    batch_size: int = Field(16, ge=1, description="Conversations in an optimizer step.")
    epoch_views: int | None = Field(
        None, ge=1, description="Conversations in an epoch, for large sets; none: all of them."
    )
    learning_rate: float = Field(
        4e-3, gt=0, le=1, description="Peak learning rate of AdamW, after a warm-up falling to 0 along a cosine."
    )
    matrix_learning_rate: float | None = Field(
        None, gt=0, le=1, description="Peak learning rate of Muon for matrices, where all weights learn; else AdamW."
    )
    held_out_share: float = Field(0.1, gt=0, lt=1, description="Share of conversations held out for early stopping.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient norm above which gradients are scaled down.")
    threads: int = Field(1, ge=1, description="Torch CPU threads.")
    adapter: AdapterSettings = AdapterSettings()


@dataclass(frozen=True)
class SupervisedProgress:
    """Where training stands. ``loss`` in nats per own token; ``perplexity`` is the latest held-out one."""

    epoch: int
    step: int
    of: int
    loss: float
    perplexity: float


@dataclass(frozen=True)
class SupervisedReport:
    """How it went. Perplexities are over the held-out views' own tokens, before and with the kept weights.

    ``best_epoch`` is 0 where no epoch was better than none. ``tokens`` counts the own tokens of one epoch,
    ``history`` the held-out perplexity after each epoch. ``adapter`` is None where all weights were trained.
    """

    perplexity_before: float
    perplexity_after: float
    epochs: int
    best_epoch: int
    tokens: int
    held_out_tokens: int
    views: int
    held_out_views: int
    history: tuple[float, ...]
    adapter: Path | None = None
    manifest: AdapterManifest | None = None


def own_row(transcript: Transcript) -> Row:
    """A view with labels on the role's own tokens and nothing else."""
    labels = [token if own else IGNORED for token, own in zip(transcript.ids, transcript.sampled, strict=True)]
    return transcript.ids, labels


def supervise(
    base: BaseModelRef,
    name: AdapterName,
    train: Sequence[Row],
    held_out: Sequence[Row],
    settings: SupervisedSettings,
    output: Path,
    progress: Callable[[SupervisedProgress], None] = lambda _: None,
    *,
    start: Path | None = None,
) -> SupervisedReport:
    """Train an adapter on ``train`` and export the best epoch's to ``output/<name>``.

    ``start`` is the exported adapter to go on from; by default a fresh one. Raises FileExistsError (before any work)
    where the output exists, ValueError for no rows, no labels or a ``start`` that does not fit, FloatingPointError
    where the loss is no longer a number.
    """
    directory = output / str(name)
    if directory.exists():
        # Found out at the end, it would cost the whole run.
        raise FileExistsError(f"{directory} exists: adapter versions are immutable, choose a new version")
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    model = get_peft_model(load_base(base), lora_config(settings.adapter))
    if start is not None:
        load_weights(model, "default", start, base)
    report = fit(model, train, held_out, settings, progress)
    output.mkdir(parents=True, exist_ok=True)
    manifest = export_adapter(model, "default", name, base.name, base.sha256, directory)
    return _with_adapter(report, directory, manifest)


def fit(
    model: torch.nn.Module,
    train: Sequence[Row],
    held_out: Sequence[Row],
    settings: SupervisedSettings,
    progress: Callable[[SupervisedProgress], None] = lambda _: None,
) -> SupervisedReport:
    """Train the weights of ``model`` that require gradients, and leave it with those of its best epoch.

    Deterministic for a seed, a number of threads and one kind of CPU. Raises ValueError, FloatingPointError.
    """
    for rows, which in ((train, "training"), (held_out, "held-out")):
        if not any(label != IGNORED for _, labels in rows for label in labels):
            raise ValueError(f"{len(rows)} {which} views hold no own token: at least one is needed to learn from")
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    batches = _Batches(train, settings)
    total = settings.epochs * batches.per_epoch
    optimizers = _optimizers(trainable, settings)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(one, _schedule(total)) for one in optimizers]
    before = best = latest = perplexity(model, held_out, settings.batch_size)
    kept, best_epoch, history = _copy(trainable), 0, list[float]()
    for epoch in range(1, settings.epochs + 1):
        model.train()
        for number, chosen in enumerate(batches.epoch(), start=1):
            step = (epoch - 1) * batches.per_epoch + number
            loss = mean_loss(model, *_tensors(chosen))
            if not torch.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss.item()} at step {step}: lower the learning rate")
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trainable.values(), settings.max_grad_norm)
            for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                scheduler.step()
            progress(SupervisedProgress(epoch, step, total, loss.item(), latest))
        latest = perplexity(model, held_out, settings.batch_size)
        history.append(latest)
        if latest < best:
            best, best_epoch, kept = latest, epoch, _copy(trainable)
        elif epoch - best_epoch >= settings.patience:
            break
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(kept[name])
    model.eval()
    return SupervisedReport(
        perplexity_before=before,
        perplexity_after=best,
        epochs=len(history),
        best_epoch=best_epoch,
        tokens=_count(train),
        held_out_tokens=_count(held_out),
        views=len(train),
        held_out_views=len(held_out),
        history=tuple(history),
    )


def perplexity(model: torch.nn.Module, rows: Sequence[Row], batch_size: int) -> float:
    """exp of the mean negative log-likelihood over all label tokens. The model is left in evaluation mode."""
    model.eval()
    ordered = sorted(rows, key=lambda row: len(row[0]))
    total, count = 0.0, 0
    with torch.no_grad():
        for first in range(0, len(ordered), batch_size):
            chosen = ordered[first : first + batch_size]
            tokens = _count(chosen)
            if tokens:
                total += mean_loss(model, *_tensors(chosen)).item() * tokens
                count += tokens
    # Beyond this the exponential overflows, and any such model has learned nothing.
    return math.exp(min(700.0, total / count))


def mean_loss(model: torch.nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood of the label tokens; ``ids`` and ``labels`` are [views, longest].

    Padding stands at the end, where causal attention keeps it from every real token, so no mask is needed.
    """
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    targets = labels[:, 1:]
    own = targets != IGNORED
    return torch.nn.functional.cross_entropy(logits[own].float(), targets[own])


def _optimizers(
    trainable: dict[str, torch.nn.Parameter], settings: SupervisedSettings
) -> list[torch.optim.Optimizer]:
    """AdamW; with a matrix learning rate, Muon (``torch.optim.Muon``) for all matrices but the embeddings."""
    if settings.matrix_learning_rate is None:
        return [torch.optim.AdamW(trainable.values(), lr=settings.learning_rate, weight_decay=0.0)]
    matrices = [p for name, p in trainable.items() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in trainable.items() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_learning_rate, weight_decay=0.01),
        torch.optim.AdamW(others, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _schedule(total: int) -> Callable[[int], float]:
    """A linear warm-up over the first twentieth of the steps (40 at most), then a cosine down to a hundredth."""
    warm_up = max(1, min(40, total // 20))

    def factor(step: int) -> float:
        return max(0.01, min(1.0, (step + 1) / warm_up) * 0.5 * (1 + math.cos(math.pi * step / total)))

    return factor


class _Batches:
    """Batches of views of similar length, so that little is padding. Order fixed by the seed."""

    def __init__(self, rows: Sequence[Row], settings: SupervisedSettings) -> None:
        # A view without labels would only make a batch's mean divide by nothing.
        self._rows = [row for row in rows if _count([row])]
        self._size = settings.batch_size
        self._rng = random.Random(f"supervised:{settings.seed}")
        self._waiting: list[list[Row]] = []
        self.per_epoch = math.ceil(min(settings.epoch_views or len(self._rows), len(self._rows)) / self._size)

    def epoch(self) -> Iterator[list[Row]]:
        """The next epoch's batches; every view comes up before any comes again."""
        for _ in range(self.per_epoch):
            if not self._waiting:
                self._waiting = self._shuffled()
            yield self._waiting.pop()

    def _shuffled(self) -> list[list[Row]]:
        order = list(self._rows)
        self._rng.shuffle(order)
        width = _POOL * self._size
        pools = [sorted(order[i : i + width], key=lambda row: len(row[0])) for i in range(0, len(order), width)]
        batches = [pool[i : i + self._size] for pool in pools for i in range(0, len(pool), self._size)]
        self._rng.shuffle(batches)
        return batches


def _tensors(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = pad_sequence([torch.tensor(row[0]) for row in rows], batch_first=True, padding_value=0)
    labels = pad_sequence([torch.tensor(row[1]) for row in rows], batch_first=True, padding_value=IGNORED)
    return ids, labels


def _count(rows: Sequence[Row]) -> int:
    """Label tokens that the loss sees: a view's first token is never predicted."""
    return sum(label != IGNORED for _, labels in rows for label in labels[1:])


def _copy(parameters: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


def _with_adapter(report: SupervisedReport, directory: Path, manifest: AdapterManifest) -> SupervisedReport:
    values: dict[str, Any] = {**report.__dict__, "adapter": directory, "manifest": manifest}
    return SupervisedReport(**values)
