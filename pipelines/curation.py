"""Which finished conversations a round may learn from: what strangers write must not steer it.

A public agent learns from whoever talks to it. The rules, in this order, each with a count of what it left out:

1. consent, and not a replayed corpus;
2. quarantine: closed for some hours, so that what is wrong with it can be noticed (and erased) before it counts;
3. floods: of near-duplicate conversations only the oldest few are kept. Near-duplicate is said of the customer's
   words alone, as sets of word triples with figures made alike (MinHash, Broder 1997, with banded LSH);
4. no customer, and no tenant, counts for more than a share of a round;
5. no more than a round has room for.

Rules 4 and 5 choose by a hash of the id and a seed, never by age: a flood just before a round pushes nobody out.
Pure, and independent of the order of its input. Memory is one signature (512 bytes) for each *different* set of
words and a small record for each conversation; words themselves are not kept.

Left out on purpose: judging what is said. Paraphrases, figures in words, and many customers with a few conversations
each pass; see docs/curation.md.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import cast

import numpy as np
from datasketch import MinHash, MinHashLSH
from numpy.typing import NDArray

from pipelines.config import CurationSettings

_PERMUTATIONS = 128
_SHINGLE_WORDS = 3
_FIGURE = re.compile(r"\d+(?:[.,' \u00a0]\d+)*")
_WORD = re.compile(r"\w+|#")


class Rule(StrEnum):
    """Why a conversation was left out; in the order in which the rules are applied."""

    CONSENT = "no_consent"
    REPLAY = "replay"
    QUARANTINE = "quarantine"
    NEAR_DUPLICATE = "near_duplicate"
    CUSTOMER = "customer_share"
    TENANT = "tenant_share"
    ROOM = "room"


@dataclass(frozen=True)
class Candidate:
    """A finished conversation. ``customer`` is a pseudonym within its tenant, None where nobody told it.

    ``said`` are the customer's words of all its turns; ``closed_at`` has a time zone.
    """

    conversation_id: str
    tenant: str
    customer: str | None
    source: str
    consent: bool
    closed_at: datetime
    said: Sequence[str] = field(repr=False)


@dataclass(frozen=True)
class Curated:
    """Ids of what may be learned from, oldest first, and how many were left out by rule (all rules, zeros too).

    ``floods`` counts the groups of near-duplicates that were cut down, ``without_customer`` those kept that no rule
    of customers could hold back.
    """

    kept: tuple[str, ...]
    left_out: Mapping[Rule, int]
    floods: int
    without_customer: int

    def figures(self) -> dict[str, int]:
        """All of it as flat numbers, by name."""
        return {
            "kept": len(self.kept),
            **{f"left_out.{rule}": count for rule, count in self.left_out.items()},
            "floods": self.floods,
            "kept_without_customer": self.without_customer,
        }


@dataclass(frozen=True)
class _Entry:
    """What is kept of a candidate while it is judged."""

    closed_at: datetime
    identity: str
    tenant: str
    customer: str | None
    signature: bytes


def curate(candidates: Iterable[Candidate], settings: CurationSettings, now: datetime, *, room: int) -> Curated:
    """Apply the rules. ``room``: most conversations that a round draws on. Ids must not repeat.

    Raises ValueError for a repeated id, or times of which some have a time zone and some have none.
    """
    left_out = Counter[Rule](dict.fromkeys(Rule, 0))
    entries = sorted(_admitted(candidates, now - timedelta(hours=settings.quarantine_hours), left_out), key=_age)
    for one, other in itertools.pairwise(sorted(entry.identity for entry in entries)):
        if one == other:
            raise ValueError(f"conversation {one!r} came up twice: give each finished conversation once")
    unique, floods = _without_floods(entries, settings)
    left_out[Rule.NEAR_DUPLICATE] = len(entries) - len(unique)

    def rank(entry: _Entry) -> bytes:
        return hashlib.blake2b(f"{settings.seed}:{entry.identity}".encode(), digest_size=16).digest()

    def cut(rule: Rule, kept: list[_Entry], group: Callable[[_Entry], object | None], limit: int) -> list[_Entry]:
        chosen = _at_most(kept, group, limit, rank)
        left_out[rule] = len(kept) - len(chosen)
        return chosen

    base = min(room, len(unique))
    per_customer = max(1, min(settings.max_per_customer, math.floor(settings.max_share_per_customer * base)))
    kept = cut(
        Rule.CUSTOMER, unique, lambda one: None if one.customer is None else (one.tenant, one.customer), per_customer
    )
    tenants = len({entry.tenant for entry in kept})
    # With two tenants a share of a third for each could not be kept by anybody.
    share = max(settings.max_per_tenant_share, 1 / max(1, tenants))
    if tenants > 1:
        kept = cut(Rule.TENANT, kept, lambda one: one.tenant, math.ceil(share * min(room, len(kept))))
    kept = sorted(cut(Rule.ROOM, kept, lambda _: "all", room), key=_age)
    return Curated(
        kept=tuple(entry.identity for entry in kept),
        left_out=dict(left_out),
        floods=floods,
        without_customer=sum(entry.customer is None for entry in kept),
    )


def _admitted(candidates: Iterable[Candidate], closed_by: datetime, left_out: Counter[Rule]) -> Iterator[_Entry]:
    """Those that the first two rules let through; equal signatures are one object."""
    signatures: dict[bytes, bytes] = {}
    for one in candidates:
        if not one.consent:
            left_out[Rule.CONSENT] += 1
        elif one.source == "replay":
            left_out[Rule.REPLAY] += 1
        elif one.closed_at > closed_by:
            left_out[Rule.QUARANTINE] += 1
        else:
            signature = _signature(shingles(one.said))
            signature = signatures.setdefault(signature, signature)
            yield _Entry(one.closed_at, one.conversation_id, one.tenant, one.customer, signature)


def _age(entry: _Entry) -> tuple[datetime, str]:
    return entry.closed_at, entry.identity


def shingles(said: Iterable[str]) -> set[str]:
    """Word triples of what was said; fewer words are one shingle. Case, width and all figures are made alike.

    A thousand conversations that differ in the price only are one thing said a thousand times.
    """
    text = unicodedata.normalize("NFKC", "\n".join(said)).casefold()
    words = _WORD.findall(_FIGURE.sub("#", text))
    if len(words) <= _SHINGLE_WORDS:
        return {" ".join(words)}
    return {" ".join(words[at : at + _SHINGLE_WORDS]) for at in range(len(words) - _SHINGLE_WORDS + 1)}


@functools.cache
def _empty() -> MinHash:
    """Holds the permutations (a fixed seed's), which are made once."""
    return MinHash(num_perm=_PERMUTATIONS, seed=1, scheme="affine32")


def _signature(words: set[str]) -> bytes:
    sketch = _empty().copy()
    sketch.update_batch([word.encode() for word in words])
    return bytes(sketch.digest().astype(np.uint32).tobytes())


def _values(signature: bytes) -> NDArray[np.uint32]:
    return np.frombuffer(signature, dtype=np.uint32)


@functools.cache
def _bands(similarity: float) -> tuple[int, int]:
    """Bands and rows of the index. Each hit is compared in full, so missing one is what costs."""
    index = MinHashLSH(similarity, num_perm=_PERMUTATIONS, weights=(0.1, 0.9))
    return index.b, index.r


def _without_floods(entries: Sequence[_Entry], settings: CurationSettings) -> tuple[list[_Entry], int]:
    """Entries (oldest first) less those beyond the limit of their group, and how many groups were cut down.

    A group is led by its oldest conversation, and all others are near-duplicates of that one: with chains of
    duplicates of duplicates two different conversations could end in one group. Only leaders are indexed, so a
    flood costs time in proportion to its size.
    """
    index = MinHashLSH(num_perm=_PERMUTATIONS, params=_bands(settings.near_duplicate_similarity))
    leaders: list[bytes] = []
    leader_of: dict[bytes, int] = {}
    sizes = Counter[int]()
    kept = []
    for entry in entries:
        leader = leader_of.get(entry.signature)
        if leader is None:
            leader = _leader(entry.signature, index, leaders, settings.near_duplicate_similarity)
            leader_of[entry.signature] = leader
        sizes[leader] += 1
        if sizes[leader] <= settings.max_near_duplicates:
            kept.append(entry)
    return kept, sum(size > settings.max_near_duplicates for size in sizes.values())


def _leader(signature: bytes, index: MinHashLSH, leaders: list[bytes], similarity: float) -> int:
    """The number of the most similar leader's group (of equals the oldest), or of a new one."""
    sketch, values = _empty().copy(), _values(signature)
    sketch.hashvalues = values
    alike = [
        (-share, number)
        for number in cast("list[int]", index.query(sketch))
        if (share := float(np.mean(_values(leaders[number]) == values))) >= similarity
    ]
    if alike:
        return min(alike)[1]
    index.insert(len(leaders), sketch)
    leaders.append(signature)
    return len(leaders) - 1


def _at_most(
    entries: list[_Entry], group: Callable[[_Entry], object | None], limit: int, rank: Callable[[_Entry], bytes]
) -> list[_Entry]:
    """At most ``limit`` of each group, chosen by ``rank``; no limit where the group is None."""
    taken = Counter[object]()
    kept = []
    for entry in sorted(entries, key=rank):
        name = group(entry)
        taken[name] += 1
        if name is None or taken[name] <= limit:
            kept.append(entry)
    return kept
