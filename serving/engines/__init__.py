"""Implementations of :class:`negotiation.generation.Engine`.

``in_process`` runs transformers and PEFT in this process, on a CPU or one GPU. The errors here are the ones
that any engine raises on top of those the seam names.
"""

from __future__ import annotations


class EngineBusy(RuntimeError):
    """The engine's queue is full: the caller should answer "try again later" and shed load."""


class EngineClosed(RuntimeError):
    """The engine was shut down before it could answer."""


class AdapterSlotsFull(ValueError):
    """The engine holds as many adapters as it may; nothing is wrong with the one that was refused."""
