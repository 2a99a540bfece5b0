"""The prefix cache finds the longest true prefix, stays within its bytes, and mixes no owners."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from serving.engines.prefix_cache import PrefixCache

TOKEN_BYTES = 2 * 2 * 3 * 4 * 4
IDS = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple)


def block(ids: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(2, 2, 3, len(ids), 4)


@given(stored=st.lists(st.tuples(st.integers(0, 1), IDS), max_size=12), owner=st.integers(0, 1), wanted=IDS)
def test_longest_prefix_of_the_same_owner(
    stored: list[tuple[int, tuple[int, ...]]], owner: int, wanted: tuple[int, ...]
) -> None:
    cache = PrefixCache(10**6)
    for who, ids in stored:
        cache.store(who, ids, block(ids), None)
    fitting = [ids for who, ids in stored if who == owner and wanted[: len(ids)] == ids]
    found = cache.longest(owner, wanted)
    assert (found.ids if found else ()) == max(fitting, key=len, default=())
    assert len(cache) == len(set(stored))
    assert cache.held_bytes == sum(len(ids) * TOKEN_BYTES for _, ids in set(stored))
    cache.drop(owner)
    assert cache.longest(owner, wanted) is None
    assert len(cache) == len({entry for entry in stored if entry[0] != owner})


@given(st.lists(IDS, max_size=30), st.integers(0, 20))
def test_never_over_its_bytes(stored: list[tuple[int, ...]], tokens: int) -> None:
    cache = PrefixCache(tokens * TOKEN_BYTES)
    for ids in stored:
        cache.store(0, ids, block(ids), None)
        assert cache.held_bytes <= cache.max_bytes


def test_least_recently_used_goes_first() -> None:
    cache = PrefixCache(4 * TOKEN_BYTES)
    cache.store(0, (1, 1), block((1, 1)), None)
    cache.store(0, (2, 2), block((2, 2)), None)
    assert cache.longest(0, (1, 1, 9)) is not None
    cache.store(0, (3, 3), block((3, 3)), None)
    assert cache.longest(0, (2, 2)) is None
    assert cache.longest(0, (1, 1)) is not None


def test_a_longer_turn_replaces_the_one_it_grew_from() -> None:
    cache = PrefixCache(10**6)
    cache.store(0, (1,), block((1,)), None)
    cache.store(0, (1, 2), block((1, 2)), cache.longest(0, (1, 2)))
    assert len(cache) == 1
    assert cache.held_bytes == 2 * TOKEN_BYTES
