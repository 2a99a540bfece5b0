"""Two ways to hold several adapters of one base model, chosen by the base's size.

``MergedAdapters`` keeps, per adapter, a copy of the linear layers it targets with the low-rank product added in
and shares all else with the base: an adapter then costs no extra time at all, which matters where layers are
tiny and calls dominate. ``PeftAdapters`` keeps low-rank matrices beside one base: little memory, slower.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import safe_open
from torch import nn
from transformers.pytorch_utils import Conv1D

from negotiation.adapter import WEIGHTS_FILE
from negotiation.generation import BASE, AdapterNotLoaded
from serving.adapters import AdapterRejected

_PEFT_PREFIX = "base_model.model."


class AdapterWeights(Protocol):
    """Names to weights. Calls to anything but :meth:`prepare` come one at a time: the engine locks."""

    def prepare(self, name: str, directory: Path) -> Any:
        """The slow part of loading, done while generation goes on; its result goes to :meth:`add`."""
        ...

    def add(self, name: str, prepared: Any) -> None: ...

    def remove(self, name: str) -> None: ...

    def active(self, name: str) -> Any:
        """Context manager that gives the model to call for ``name``. Raises AdapterNotLoaded."""
        ...


class MergedAdapters:
    """One model object per adapter; the base and all of them share every tensor that no adapter targets."""

    def __init__(self, base: nn.Module) -> None:
        self._models: dict[str, nn.Module] = {BASE: base}
        self._base = base

    def prepare(self, name: str, directory: Path) -> nn.Module:
        shared = {id(tensor): tensor for tensor in (*self._base.parameters(), *self._base.buffers())}
        model = copy.deepcopy(self._base, shared)
        adapted = PeftModel.from_pretrained(model, directory, adapter_name=name)
        for module in adapted.modules():
            if isinstance(module, BaseTunerLayer):
                layer: nn.Module = cast(Any, module).get_base_layer()
                # Merging writes in place: not into the tensor that the base shares.
                layer.weight = nn.Parameter(cast(torch.Tensor, layer.weight).detach().clone(), requires_grad=False)
        merged = cast(Any, adapted).merge_and_unload(safe_merge=True)
        return cast(nn.Module, merged.eval().requires_grad_(False))

    def add(self, name: str, prepared: nn.Module) -> None:
        self._models[name] = prepared

    def remove(self, name: str) -> None:
        del self._models[name]

    @contextmanager
    def active(self, name: str) -> Iterator[nn.Module]:
        model = self._models.get(name)
        if model is None:
            raise AdapterNotLoaded(f"adapter {name!r} is not loaded; loaded: {sorted(self._models)}")
        yield model


class PeftAdapters:
    """One base with every adapter's low-rank matrices beside it, one of them active at a time."""

    def __init__(self, base: nn.Module) -> None:
        self._base = base
        self._adapted: PeftModel | None = None
        self._names: set[str] = set()

    def prepare(self, name: str, directory: Path) -> Path:
        return directory

    def add(self, name: str, prepared: Path) -> None:
        if self._adapted is None:
            self._adapted = PeftModel.from_pretrained(self._base, prepared, adapter_name=name)
        else:
            self._adapted.load_adapter(str(prepared), adapter_name=name)
        self._adapted.eval().requires_grad_(False)
        self._names.add(name)

    def remove(self, name: str) -> None:
        assert self._adapted is not None
        self._names.remove(name)
        if self._names:
            # PEFT warns when the active one is deleted.
            self._adapted.set_adapter(next(iter(self._names)))
            self._adapted.delete_adapter(name)
        else:
            self._base = self._adapted.unload()
            self._adapted = None

    @contextmanager
    def active(self, name: str) -> Iterator[nn.Module]:
        if name == BASE and self._adapted is None:
            yield self._base
        elif name == BASE:
            assert self._adapted is not None
            with self._adapted.disable_adapter():
                yield self._adapted
        elif self._adapted is not None and name in self._names:
            self._adapted.set_adapter(name)
            yield self._adapted
        else:
            raise AdapterNotLoaded(f"adapter {name!r} is not loaded; loaded: {sorted(self._names)}")


def choose(base: nn.Module, merge_below: int) -> AdapterWeights:
    """Merged copies for a base of fewer than ``merge_below`` parameters, else low-rank matrices beside it."""
    size = sum(parameter.numel() for parameter in base.parameters())
    return MergedAdapters(base) if size < merge_below else PeftAdapters(base)


def layer_shapes(base: nn.Module) -> dict[str, tuple[int, int]]:
    """Output and input size of every layer that LoRA can target, by its path in the base model."""
    shapes = {}
    for path, module in base.named_modules():
        if isinstance(module, nn.Linear):
            shapes[path] = (module.out_features, module.in_features)
        elif isinstance(module, Conv1D):
            shapes[path] = (module.weight.shape[1], module.weight.shape[0])
    return shapes


def stored_shapes(model_dir: Path) -> dict[str, tuple[int, int]]:
    """The same for a model that is not loaded here, from the headers of its files.

    Raises FileNotFoundError without safetensors.
    """
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{model_dir} holds no *.safetensors: name the directory of the base model")
    shapes = {}
    for file in files:
        with safe_open(file, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118
                size = stored.get_slice(key).get_shape()
                if key.endswith(".weight") and len(size) == 2:
                    shapes[key.removesuffix(".weight")] = (size[0], size[1])
    return shapes


def check_fit(shapes: dict[str, tuple[int, int]], name: str, directory: Path) -> None:
    """Every stored matrix has a layer of its size. Raises AdapterRejected.

    PEFT itself only warns of a layer it cannot find and then serves the base in disguise, and a wrong size
    leaves the model half changed.
    """
    with safe_open(directory / WEIGHTS_FILE, framework="pt") as stored:
        for key in stored.keys():  # noqa: SIM118
            path, _, kind = key.removeprefix(_PEFT_PREFIX).removesuffix(".weight").rpartition(".")
            if path not in shapes:
                raise AdapterRejected(
                    f"{name} does not fit this base model: it has no layer {path}; train it on this base"
                )
            side = 1 if kind == "lora_A" else 0
            size = stored.get_slice(key).get_shape()[side]
            if size != shapes[path][side]:
                raise AdapterRejected(
                    f"{name} does not fit this base model: {path} has size {shapes[path][side]}, the adapter's is "
                    f"{size}; train it on this base"
                )


def changes_output(directory: Path) -> bool:
    """Whether the adapter's stored product can be anything but zero (a fresh LoRA has B = 0)."""
    with safe_open(directory / WEIGHTS_FILE, framework="pt") as stored:
        return any(torch.any(stored.get_tensor(key)).item() for key in stored.keys() if "lora_B" in key)  # noqa: SIM118
