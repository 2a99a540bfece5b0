"""Measures what a run costs while it runs: seconds by phase and the most memory held."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Seconds by phase. ``seconds`` may be given to go on from an earlier part of the run."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds = dict(seconds or {})

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began


def peak_memory() -> int:
    """The most memory that this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_gpu_memory() -> int:
    """The most GPU memory that torch has held in this process, in bytes; 0 without a GPU."""
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else 0
