"""Checkpoints of a run: what the next step depends on, written whole or not at all.

A checkpoint is a folder that appears by a rename when everything in it is on disk; the one before it goes after
that. ``kill -9`` at any moment leaves a complete one. Each learner has a folder of its own inside, so either role
can be taken out and gone on with alone. A checkpoint belongs to one run: the same settings, base model, start
adapters and scenario, told by a fingerprint.

Left out on purpose: the adapters that a run publishes (:mod:`training.artifacts`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATE_FILE = "run.json"


class CheckpointMismatch(ValueError):
    """A checkpoint of another run lies where this one would put its own."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint after ``step`` steps."""

    directory: Path
    step: int
    state: dict[str, Any]

    def learner(self, name: str) -> Path:
        return self.directory / name


class Checkpoints:
    """The checkpoints of one run under ``directory``; the newest is kept."""

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self.directory, self.fingerprint = directory, fingerprint

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint. Raises CheckpointMismatch for one of another run."""
        found = sorted(self.directory.glob("step-*"))
        if not found:
            return None
        state = json.loads((found[-1] / STATE_FILE).read_text(encoding="utf-8"))
        if state["fingerprint"] != self.fingerprint:
            raise CheckpointMismatch(
                f"{found[-1]} was written by a run with other settings, base model, start adapters or scenario: "
                "restore those to go on with it, or remove the folder to begin anew"
            )
        return Checkpoint(found[-1], int(state["step"]), state)

    def write(self, step: int, state: Mapping[str, Any], learners: Mapping[str, Callable[[Path], None]]) -> None:
        """Save every learner into its own folder, then the state; replaces the checkpoint before."""
        final = self.directory / f"step-{step:06d}"
        if final.exists():
            return
        staging = self.directory / f".{final.name}.partial"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        for name, save in learners.items():
            save(staging / name)
        text = json.dumps({**state, "step": step, "fingerprint": self.fingerprint})
        (staging / STATE_FILE).write_text(text, encoding="utf-8")
        _flush(staging)
        staging.rename(final)
        _flush_one(self.directory)
        for old in sorted(self.directory.glob("step-*"))[:-1]:
            shutil.rmtree(old, ignore_errors=True)


def fingerprint(parts: Mapping[str, object]) -> str:
    """A digest of everything that a run's course depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _flush(directory: Path) -> None:
    for path in directory.rglob("*"):
        _flush_one(path)
    _flush_one(directory)


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
