"""The adapters that play in a step, in the engine for just as long.

Every step's weights have a name of their own (``agent@7-step12``): a name is never loaded twice with other weights,
so no engine can answer from the attention states of older ones. Frozen partners are loaded and unloaded along with
the rest, so that a step finds the engine in the same state whether or not the run was interrupted before it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from negotiation.adapter import AdapterName
from negotiation.generation import Engine
from negotiation.roles import Role
from training.learner import RoleLearner


@contextmanager
def loaded(engine: Engine, adapters: Mapping[str, Path]) -> Iterator[None]:
    """Load every adapter (engine name to folder); unload them all at the end, whatever happened."""
    try:
        for name, directory in adapters.items():
            engine.load_adapter(name, directory)
        yield
    finally:
        for name in adapters:
            if name in engine.loaded_adapters():
                engine.unload_adapter(name)


@contextmanager
def exported(
    learners: Mapping[Role, RoleLearner], version: int, step: int, folder: Path
) -> Iterator[dict[Role, Path]]:
    """Each learner's present weights as an adapter of this step; removed at the end."""
    found = {}
    for role, learner in learners.items():
        name = AdapterName(role=role, version=version, step=step)
        directory = folder / str(name)
        shutil.rmtree(directory, ignore_errors=True)
        learner.export(name, directory)
        found[role] = directory
    try:
        yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)
