"""The gate: may this candidate replace the champion? Pure: rows in, a decision with its reasons out.

Candidate and champion played the same scenarios against the same counterparts. The unit of evidence is the paired
difference, and pairs of one scenario are not independent of each other, so the bootstrap draws whole scenarios
(percentile cluster bootstrap; Cameron, Gelbach, Miller 2008). A candidate passes only if it is *shown* to be better;
a tie, a too wide interval and a regression in own reward all keep the champion.

Left out on purpose: correction for having looked many times. Every round trains a new candidate and is judged on
scenarios drawn for that round, so the rows are fresh each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipelines.config import GateSettings

Floats = NDArray[np.float64]


class Episode(Protocol):
    """One evaluated conversation. ``own_reward`` is the judged role's, ``blocked`` offers beyond authority."""

    @property
    def seed(self) -> int: ...
    @property
    def opponent(self) -> str: ...
    @property
    def success(self) -> bool: ...
    @property
    def own_reward(self) -> float: ...
    @property
    def blocked_offers(self) -> int: ...


class GateError(ValueError):
    """The two evaluations can not be compared. Says what is missing."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its two-sided bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class GateDecision:
    """``differences`` are candidate minus champion, by metric; ``reasons`` are sentences, the decisive ones first."""

    promote: bool
    reasons: tuple[str, ...]
    metric: str
    differences: Mapping[str, Interval]
    candidate: Mapping[str, Interval]
    champion: Mapping[str, Interval]
    by_opponent: Mapping[str, Interval]
    pairs: int
    scenarios: int


METRICS = ("success", "own_reward", "blocked_offers")


def decide(candidate: Sequence[Episode], champion: Sequence[Episode], settings: GateSettings) -> GateDecision:
    """Compare two evaluations of one role. Raises GateError unless they played the same conversations.

    Promote iff the difference in ``settings.metric`` has its whole interval over ``min_effect``, own reward and
    success are not significantly lower, and blocked offers per conversation rose by no more than allowed.
    """
    keys, new, old = _paired(candidate, champion)
    seeds = [seed for seed, _ in keys]
    scenarios = len(set(seeds))
    if scenarios < settings.min_scenarios:
        raise GateError(
            f"{scenarios} scenarios were played, at least {settings.min_scenarios} are needed: raise the number of "
            "evaluation scenarios or lower min_scenarios"
        )
    sampler = _ClusterBootstrap(seeds, settings)
    columns = {metric: (_column(new, metric), _column(old, metric)) for metric in METRICS}
    differences = {metric: sampler.interval(a - b) for metric, (a, b) in columns.items()}
    opponents = sorted({opponent for _, opponent in keys})
    judged = columns[settings.metric][0] - columns[settings.metric][1]
    masks = {name: np.array([opponent == name for _, opponent in keys]) for name in opponents}
    promote, reasons = _verdict(differences, settings)
    return GateDecision(
        promote=promote,
        reasons=tuple(reasons),
        metric=settings.metric,
        differences=differences,
        candidate={metric: sampler.interval(a) for metric, (a, _) in columns.items()},
        champion={metric: sampler.interval(b) for metric, (_, b) in columns.items()},
        by_opponent={
            name: _ClusterBootstrap([s for s, o in keys if o == name], settings).interval(judged[mask])
            for name, mask in masks.items()
        },
        pairs=len(keys),
        scenarios=scenarios,
    )


def _verdict(differences: Mapping[str, Interval], settings: GateSettings) -> tuple[bool, list[str]]:
    level = f"{settings.confidence:.0%}"
    against: list[str] = []
    judged = differences[settings.metric]
    name = settings.metric.replace("_", " ")
    if judged.low <= settings.min_effect:
        against.append(
            f"The {name} differs by {judged} ({level} interval), which does not show an improvement of more than "
            f"{settings.min_effect:g}."
        )
    for other in ("success", "own_reward"):
        if other != settings.metric and differences[other].high < 0:
            against.append(f"The {other.replace('_', ' ')} is lower: {differences[other]} ({level} interval).")
    blocked = differences["blocked_offers"].mean
    if blocked > settings.max_extra_blocked:
        against.append(
            f"Offers beyond authority rose by {blocked:.3f} a conversation; allowed: {settings.max_extra_blocked:g}."
        )
    if against:
        return False, against
    return True, [
        f"The {name} rises by {judged} ({level} interval), all of it over {settings.min_effect:g}.",
        f"Success and own reward are not lower; offers beyond authority changed by {blocked:+.3f} a conversation.",
    ]


def _paired(
    candidate: Sequence[Episode], champion: Sequence[Episode]
) -> tuple[list[tuple[int, str]], list[Episode], list[Episode]]:
    new, old = _by_key(candidate, "candidate"), _by_key(champion, "champion")
    if not new.keys() & old.keys():
        raise GateError(
            f"the candidate's {len(new)} and the champion's {len(old)} conversations share no scenario and opponent: "
            "evaluate both on the same seeds and opponents"
        )
    if unpaired := new.keys() ^ old.keys():
        seed, opponent = min(unpaired)
        raise GateError(
            f"{len(unpaired)} conversations were played by one only, first scenario {seed} against {opponent!r}: "
            "evaluate both on the same seeds and opponents"
        )
    keys = sorted(new)
    return keys, [new[key] for key in keys], [old[key] for key in keys]


def _by_key(episodes: Sequence[Episode], who: str) -> dict[tuple[int, str], Episode]:
    found = {(episode.seed, episode.opponent): episode for episode in episodes}
    if len(found) != len(episodes):
        raise GateError(
            f"the {who} played {len(episodes) - len(found)} conversations twice: one per seed and opponent"
        )
    return found


def _column(episodes: Sequence[Episode], metric: str) -> Floats:
    return np.array([float(getattr(episode, metric)) for episode in episodes])


class _ClusterBootstrap:
    """The same resamples of scenarios for every column, so that differences and levels agree with each other."""

    def __init__(self, clusters: Sequence[int], settings: GateSettings) -> None:
        names, self._cluster_of = np.unique(np.array(clusters), return_inverse=True)
        self._sizes = np.bincount(self._cluster_of).astype(float)
        rng = np.random.default_rng(settings.seed)
        # How often each scenario is drawn, resample by resample: [resamples, scenarios].
        self._weights = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), settings.resamples)
        tail = (1 - settings.confidence) / 2
        self._quantiles = (tail, 1 - tail)

    def interval(self, values: Floats) -> Interval:
        sums = np.bincount(self._cluster_of, weights=values)
        means = (self._weights @ sums) / (self._weights @ self._sizes)
        low, high = np.quantile(means, self._quantiles)
        return Interval(float(values.mean()), float(low), float(high))
