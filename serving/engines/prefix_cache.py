"""Keys and values of dialogues that will go on, so that a next turn computes only its new tokens.

An entry is a whole finished sequence (prompt and completion but the last token, whose keys were never
computed). Dialogues only append ids, so the next turn's prompt begins with exactly that. Entries belong to one
load of one adapter: attention states of one set of weights mean nothing to another.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class CachedPrefix:
    """``block`` is [layers, 2, heads, len(ids), head size]."""

    owner: int
    ids: tuple[int, ...]
    block: torch.Tensor

    @property
    def size(self) -> int:
        return self.block.numel() * self.block.element_size()


def _rolling(owner: int, ids: Sequence[int]) -> Iterator[int]:
    """A hash for every prefix of ``ids``, each from the one before it."""
    value = hash((owner,))
    for token in ids:
        value = hash((value, token))
        yield value


class PrefixCache:
    """Least recently used entries go first once ``max_bytes`` are held. Not thread-safe: the engine locks."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._entries: OrderedDict[int, CachedPrefix] = OrderedDict()
        self._bytes = 0
        self.tokens_reused = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def longest(self, owner: int, ids: tuple[int, ...]) -> CachedPrefix | None:
        """The longest entry that ``ids`` begins with."""
        if not self._entries:
            return None
        keys = [key for key in _rolling(owner, ids) if key in self._entries]
        for key in reversed(keys):
            entry = self._entries[key]
            # A hash may collide; only equal tokens of the same owner have equal attention states.
            if entry.owner == owner and entry.ids == ids[: len(entry.ids)]:
                self._entries.move_to_end(key)
                self.tokens_reused += len(entry.ids)
                return entry
        return None

    def store(self, owner: int, ids: tuple[int, ...], block: torch.Tensor, extends: CachedPrefix | None) -> None:
        """Keep a sequence; the shorter one that it ``extends`` is not needed any more."""
        if extends is not None:
            self._remove(self._key(extends.owner, extends.ids))
        entry = CachedPrefix(owner, ids, block)
        if entry.size > self.max_bytes:
            return
        key = self._key(owner, ids)
        self._remove(key)
        self._entries[key] = entry
        self._bytes += entry.size
        while self._bytes > self.max_bytes:
            self._remove(next(iter(self._entries)))

    def drop(self, owner: int) -> None:
        """Forget everything of one owner."""
        for key in [key for key, entry in self._entries.items() if entry.owner == owner]:
            self._remove(key)

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    @staticmethod
    def _key(owner: int, ids: tuple[int, ...]) -> int:
        return deque(_rolling(owner, ids), maxlen=1)[0]

    def _remove(self, key: int) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size
