"""Attention keys and values of a running batch, in one tensor in which slot number equals token position.

Hugging Face's ``DynamicCache`` concatenates, so every decoding step copies the whole cache; and with padding
in the middle a row's slots and positions drift apart. Here row r holds token p at slot p, whatever the other
rows do. Then "may attend" is just ``slot <= position``, a finished row is replaced by moving the last live one
into its place, and a dialogue's earlier turns are put back by copying one block.

Left out on purpose: sliding-window, linear-attention and other hybrid caches (:func:`kv_shape` refuses them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer


@dataclass(frozen=True)
class KvShape:
    """What one token's keys and values take up."""

    layers: int
    heads: int
    head_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.heads * self.head_size * self.dtype.itemsize


def kv_shape(model: Any) -> KvShape:
    """Shape of the model's cache, found by running one token. Raises ValueError for a hybrid cache."""
    device = next(model.parameters()).device
    with torch.inference_mode():
        output = model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=device), use_cache=True)
    cache = output.cache if hasattr(output, "cache") else output.past_key_values
    shapes = {(type(layer), layer.keys.shape, layer.values.shape, layer.keys.dtype) for layer in cache.layers}
    kind, keys, values, dtype = next(iter(shapes))
    if len(shapes) != 1 or kind is not DynamicLayer or keys != values:
        raise ValueError(
            f"{type(model).__name__} keeps a hybrid attention cache (sliding window, linear attention or layers of "
            "different shape), which the in-process engine does not run; serve this model with the vLLM engine"
        )
    return KvShape(len(cache.layers), keys[1], keys[3], dtype, device)


class KvBuffer:
    """Keys and values of ``rows`` sequences of up to ``capacity`` tokens: [layers, 2, rows, heads, capacity, size].

    ``storage`` is a flat tensor to lay the buffer out in. It must hold finite numbers: slots that no query may
    see still take part in the matrix product, with weight zero.
    """

    def __init__(self, shape: KvShape, rows: int, capacity: int, storage: torch.Tensor) -> None:
        size = (shape.layers, 2, rows, shape.heads, capacity, shape.head_size)
        self.capacity = capacity
        self._data = storage[: torch.Size(size).numel()].view(size)

    def window(self, first: int, last: int, slots: torch.Tensor, visible: int) -> Cache:
        """A cache for one forward pass over rows [first, last): writes at ``slots`` [rows, tokens], shows
        the first ``visible`` slots."""
        rows = torch.arange(last - first, device=slots.device)[:, None]
        return Cache(layers=[_Window(layer[:, first:last], rows, slots, visible) for layer in self._data])

    def read(self, row: int, length: int) -> torch.Tensor:
        """A copy of a row's first ``length`` tokens: [layers, 2, heads, length, size]."""
        return self._data[:, :, row, :, :length].clone()

    def write(self, row: int, block: torch.Tensor) -> None:
        """Put back what :meth:`read` returned."""
        self._data[:, :, row, :, : block.shape[3]] = block

    def copy(self, source: int, target: int, length: int) -> None:
        """Make row ``target`` equal row ``source`` over the first ``length`` tokens."""
        self._data[:, :, target, :, :length] = self._data[:, :, source, :, :length]


class _Window(CacheLayerMixin):
    """One layer's part of a :meth:`KvBuffer.window`, in the form that transformers' models call."""

    def __init__(self, keys_values: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, visible: int) -> None:
        super().__init__()
        self.keys, self.values = keys_values[0], keys_values[1]
        self.is_initialized = True
        self._rows, self._slots, self._visible = rows, slots, visible

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise AssertionError("a window is initialised when made")

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys[self._rows, :, self._slots] = key_states.transpose(1, 2)
        self.values[self._rows, :, self._slots] = value_states.transpose(1, 2)
        return self.keys[:, :, : self._visible], self.values[:, :, : self._visible]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._visible, 0

    def get_seq_length(self) -> int:
        return self._visible - self._slots.shape[1]

    def get_max_length(self) -> int:
        return self._visible
