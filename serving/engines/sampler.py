"""Draws tokens so that a seeded request's result depends on its own seed and not on who shares its batch.

Each request brings its own stream of uniform numbers and a token is the inverse of the cumulative distribution
at the next one. (Floating-point sums differ by about 1e-7 between batch shapes; a draw that falls within that
of a boundary may still go to the neighbouring token.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from negotiation.generation import Sampling

_SEEDS = 2**63


class Sampler:
    """Samples for a batch whose rows began together. Rows are dropped with :meth:`keep`."""

    def __init__(self, samplings: Sequence[Sampling], shared: torch.Generator, device: torch.device) -> None:
        steps = max(sampling.max_tokens for sampling in samplings)
        draws = torch.empty((len(samplings), steps), dtype=torch.float64)
        own = torch.Generator()
        for row, sampling in enumerate(samplings):
            generator = shared if sampling.seed is None else own.manual_seed(sampling.seed % _SEEDS)
            draws[row, : sampling.max_tokens] = torch.rand(
                sampling.max_tokens, generator=generator, dtype=torch.float64
            )
        temperatures = torch.tensor([sampling.temperature for sampling in samplings], dtype=torch.float32)
        self._draws = draws.to(device)
        self._temperatures = temperatures.to(device)
        self._plain = bool((temperatures == 1).all())
        self._greedy = bool((temperatures == 0).all())

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows, in this order."""
        self._draws = self._draws[rows]
        self._temperatures = self._temperatures[rows]

    def sample(self, logits: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and their log-probabilities, [rows] each, from float32 ``logits`` [rows, vocabulary].

        The log-probability is always that of temperature 1, whatever temperature was sampled at.
        """
        log_probabilities = logits.log_softmax(-1)
        if self._greedy:
            tokens = logits.argmax(-1)
        else:
            if self._plain:
                weights = log_probabilities.exp()
            else:
                heat = self._temperatures.clamp(min=1e-6)[:, None]
                weights = (logits / heat).softmax(-1)
            cumulative = weights.cumsum(-1, dtype=torch.float64)
            target = self._draws[:, step, None] * cumulative[:, -1:]
            tokens = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
            if not self._plain:
                tokens = torch.where(self._temperatures == 0, logits.argmax(-1), tokens)
        return tokens, log_probabilities.gather(-1, tokens[:, None])[:, 0]
