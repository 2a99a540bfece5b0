"""Implementations of :class:`negotiation.generation.Engine`.

``in_process`` runs transformers and PEFT in this process, on a CPU or one GPU; ``vllm`` speaks to vLLM servers.
The errors here are the ones that any engine raises on top of those the seam names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class EngineBusy(RuntimeError):
    """The engine's queue is full: the caller should answer "try again later" and shed load."""


class EngineClosed(RuntimeError):
    """The engine was shut down before it could answer."""


class EngineUnavailable(ConnectionError):
    """No server behind the engine can answer now; nothing is wrong with the request."""


class AdapterSlotsFull(ValueError):
    """The engine holds as many adapters as it may; nothing is wrong with the one that was refused."""


@dataclass(frozen=True)
class ReplicaStatus:
    """Where one server behind an engine stands: for the readiness page, the admin page and the metrics."""

    url: str
    state: Literal["up", "down"]
    reason: str
    in_flight: int
