"""Generates for one batch of requests that share one set of weights.

Prompt tokens but the last are computed first (sorted by how many are new, so that little is padding), then all
rows decode together from their last prompt token on. A row that stops leaves the batch at once.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from negotiation.generation import GenerationRequest, GenerationResult
from serving.engines.kv_buffer import KvBuffer
from serving.engines.listener import Listener
from serving.engines.prefix_cache import CachedPrefix, PrefixCache
from serving.engines.sampler import Sampler

PREFILL_TOKENS = 2048
"""Padded tokens of one prompt pass: enough to fill the matrix units, little enough to stay in cache."""


class NonFiniteLogits(FloatingPointError):
    """The weights produced NaN or infinity."""


@dataclass
class _Row:
    index: int
    request: GenerationRequest
    cached: CachedPrefix | None
    listener: Listener | None = None
    twin: int | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Tokens whose keys and values are at hand."""
        return 0 if self.cached is None else len(self.cached.ids)

    @property
    def new(self) -> int:
        """Prompt tokens to compute before decoding starts with the last one."""
        return len(self.request.prompt_ids) - 1 - self.known

    @property
    def abandoned(self) -> bool:
        """Whoever listened has left."""
        return self.listener is not None and self.listener.gone

    @property
    def finish_reason(self) -> Literal["stop", "length"] | None:
        if self.abandoned:
            return "length"  # never read by anybody
        if self.tokens and self.tokens[-1] in self.request.sampling.stop_token_ids:
            return "stop"
        return "length" if len(self.tokens) == self.request.sampling.max_tokens else None


class Decoder:
    """Runs batches of one causal language model; ``forward_options`` follow the installed transformers."""

    def __init__(self, model: Any, context_length: int) -> None:
        parameters = inspect.signature(model.forward).parameters
        self._cache_option = "cache" if "cache" in parameters else "past_key_values"
        self._last_logits = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._context_length = context_length

    def run(
        self,
        model: Any,
        requests: Sequence[GenerationRequest],
        buffer: KvBuffer,
        generator: torch.Generator,
        prefixes: PrefixCache | None,
        owner: int,
        listeners: Sequence[Listener | None],
    ) -> list[GenerationResult]:
        """Result i answers request i, and listener i hears its tokens. Raises NonFiniteLogits."""
        rows = self._arrange(requests, prefixes, owner)
        for row in rows:
            row.listener = listeners[row.index]
        device = next(model.parameters()).device
        self._prefill(model, rows, buffer, device)
        finished = self._decode(model, rows, buffer, generator, prefixes, owner, device)
        results: list[GenerationResult | None] = [None] * len(requests)
        for row in finished:
            if not all(map(math.isfinite, row.logprobs)):
                raise NonFiniteLogits(
                    f"adapter {row.request.adapter!r} produced non-finite logits; unload it and retrain it"
                )
            reason = row.finish_reason
            assert reason is not None
            results[row.index] = GenerationResult(tuple(row.tokens), tuple(row.logprobs), reason)
        return [result for result in results if result is not None]

    @staticmethod
    def _arrange(requests: Sequence[GenerationRequest], prefixes: PrefixCache | None, owner: int) -> list[_Row]:
        """Rows in buffer order: by new tokens, then those whose whole prompt another row computes anyway."""
        unique: dict[tuple[int, ...], _Row] = {}
        twins: list[_Row] = []
        for index, request in enumerate(requests):
            prompt = request.prompt_ids
            if prompt in unique:
                twins.append(_Row(index, request, unique[prompt].cached))
            else:
                cached = None if prefixes is None else prefixes.longest(owner, prompt[:-1])
                unique[prompt] = _Row(index, request, cached)
        rows = sorted(unique.values(), key=lambda row: row.new)
        places = {row.request.prompt_ids: place for place, row in enumerate(rows)}
        for row in twins:
            row.twin = places[row.request.prompt_ids]
        return rows + twins

    def _forward(
        self,
        model: Any,
        buffer: KvBuffer,
        first: int,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        visible: int,
    ) -> torch.Tensor:
        """Logits [rows, 1, vocabulary] of the last column; rows are ``first`` and the following."""
        slots = torch.arange(visible, device=tokens.device)
        hidden = slots[None, None, None, :] > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=model.dtype, device=tokens.device)
        mask.masked_fill_(hidden, -math.inf)
        window = buffer.window(first, first + len(tokens), positions, visible)
        output = model(
            input_ids=tokens,
            attention_mask=mask,
            # Padding may lie past the last position; what it computes is never looked at.
            position_ids=positions.clamp(max=self._context_length - 1),
            use_cache=True,
            **{self._cache_option: window},
            **self._last_logits,
        )
        logits: torch.Tensor = output.logits[:, -1:]
        return logits

    def _prefill(self, model: Any, rows: list[_Row], buffer: KvBuffer, device: torch.device) -> None:
        own = [row for row in rows if row.twin is None]
        for place, row in enumerate(own):
            if row.cached is not None:
                buffer.write(place, row.cached.block)
        first = next((place for place, row in enumerate(own) if row.new), len(own))
        while first < len(own):
            last = first + 1
            while last < len(own) and (last + 1 - first) * own[last].new <= PREFILL_TOKENS:
                last += 1
            batch = own[first:last]
            width = batch[-1].new
            tokens = torch.tensor(
                [[*row.request.prompt_ids[row.known : -1], *[0] * (width - row.new)] for row in batch], device=device
            )
            starts = torch.tensor([row.known for row in batch], device=device)
            positions = starts[:, None] + torch.arange(width, device=device)
            # No real token ever has its keys in the buffer's last slot: padding may scribble there.
            positions.clamp_(max=buffer.capacity - 1)
            self._forward(model, buffer, first, tokens, positions, max(row.known + row.new for row in batch))
            first = last
        for place, row in enumerate(rows):
            if row.twin is not None:
                buffer.copy(row.twin, place, len(row.request.prompt_ids) - 1)

    def _decode(
        self,
        model: Any,
        rows: list[_Row],
        buffer: KvBuffer,
        generator: torch.Generator,
        prefixes: PrefixCache | None,
        owner: int,
        device: torch.device,
    ) -> list[_Row]:
        sampler = Sampler([row.request.sampling for row in rows], generator, device)
        tokens = torch.tensor([row.request.prompt_ids[-1] for row in rows], device=device)
        positions = torch.tensor([len(row.request.prompt_ids) - 1 for row in rows], device=device)
        live, finished, step = list(rows), list[_Row](), 0
        while live:
            visible = max(len(row.request.prompt_ids) for row in live) + step
            logits = self._forward(model, buffer, 0, tokens[:, None], positions[:, None], visible)[:, 0].float()
            tokens, logprobs = sampler.sample(logits, step)
            for row, token, logprob in zip(live, tokens.tolist(), logprobs.tolist(), strict=True):
                row.tokens.append(token)
                row.logprobs.append(logprob)
                if row.listener is not None:
                    row.listener.token(token, logprob, row.finish_reason)
            positions = positions + 1
            step += 1
            done = [place for place, row in enumerate(live) if row.finish_reason]
            if done:
                finished.extend(live[place] for place in done)
                if prefixes is not None:
                    for place in done:
                        if live[place].abandoned:
                            continue  # half a reply is no turn: what is kept of the last one serves the retry
                        self._remember(live[place], place, buffer, prefixes, owner)
                order = _compact(live, set(done), buffer, step)
                live = [live[place] for place in order]
                index = torch.tensor(order, dtype=torch.long, device=device)
                tokens, positions = tokens[index], positions[index]
                sampler.keep(index)
        return finished

    @staticmethod
    def _remember(row: _Row, place: int, buffer: KvBuffer, prefixes: PrefixCache, owner: int) -> None:
        ids = row.request.prompt_ids + tuple(row.tokens[:-1])
        prefixes.store(owner, ids, buffer.read(place, len(ids)), row.cached)


def _compact(live: list[_Row], done: set[int], buffer: KvBuffer, step: int) -> list[int]:
    """Move live rows from the end into the places of finished ones; returns the old place of each new one."""
    remaining = len(live) - len(done)
    holes = [place for place in range(remaining) if place in done]
    movers = [place for place in range(remaining, len(live)) if place not in done]
    order = list(range(remaining))
    for hole, mover in zip(holes, movers, strict=True):
        buffer.copy(mover, hole, len(live[mover].request.prompt_ids) - 1 + step)
        order[hole] = mover
    return order
