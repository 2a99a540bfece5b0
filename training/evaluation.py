"""Evaluation of a frozen adapter: paired seeded scenarios against scripted counterparts, row by row.

Two adapters evaluated with the same seeds and opponents are comparable pair by pair: contexts, opponents' traits
and every random number are the same, so only the adapter differs. Always look at success, own reward, agreement
and Pareto share together: a policy that accepts everything agrees always.

Run: ``sparring evaluate``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.stats import bootstrap

from negotiation.generation import Engine, Sampling
from negotiation.roles import Role
from negotiation.scenario import Scenario
from training.counterparts import Negotiator
from training.joint_rollout import Dialogue, ModelPlayer, ScriptedPlayer, Table, play


@dataclass(frozen=True)
class Episode:
    """One evaluated conversation. ``blocked_offers`` counts the judged role's offers beyond authority."""

    seed: int
    opponent: str
    family: str
    success: bool
    agreed: bool
    own_reward: float
    other_reward: float
    own_points: float
    other_points: float
    pareto_optimal: bool | None
    turns: int
    tokens: int
    blocked_offers: int
    close_reason: str


@dataclass(frozen=True)
class Estimate:
    """A mean with a bootstrap interval that resamples whole scenarios."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class EvaluationResult:
    """All episodes of one adapter in one role."""

    adapter: str
    role: Role
    scenario: str
    episodes: tuple[Episode, ...]

    def estimate(self, metric: str, confidence: float = 0.95) -> Estimate:
        """Mean of an episode field over all, clustered by scenario seed. Fields without a value are left out."""
        by_seed: dict[int, list[float]] = {}
        for episode in self.episodes:
            value = asdict(episode)[metric]
            if value is not None:
                by_seed.setdefault(episode.seed, []).append(float(value))
        if not by_seed:
            return Estimate(float("nan"), float("nan"), float("nan"))
        totals = np.array([sum(values) for values in by_seed.values()])
        counts = np.array([len(values) for values in by_seed.values()])
        mean = float(totals.sum() / counts.sum())
        if len(by_seed) < 2 or np.allclose(totals / counts, mean):
            return Estimate(mean, mean, mean)
        result = bootstrap(
            (totals, counts),
            lambda t, c, axis=-1: t.sum(axis=axis) / c.sum(axis=axis),
            paired=True,
            vectorized=True,
            n_resamples=2000,
            confidence_level=confidence,
            method="percentile",
            rng=np.random.default_rng(0),
        )
        return Estimate(mean, float(result.confidence_interval.low), float(result.confidence_interval.high))

    def by_opponent(self) -> dict[str, EvaluationResult]:
        """The same result split by opponent."""
        names = dict.fromkeys(episode.opponent for episode in self.episodes)
        return {
            name: EvaluationResult(
                self.adapter, self.role, self.scenario, tuple(e for e in self.episodes if e.opponent == name)
            )
            for name in names
        }


def evaluate(
    engine: Engine,
    scenario: Scenario,
    adapter: str,
    role: Role,
    opponents: Sequence[Negotiator],
    seeds: Sequence[int],
    *,
    max_message_tokens: int = 40,
    batch: int = 256,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> EvaluationResult:
    """Play every seed against every opponent once, at temperature 1.

    Raises ValueError for no seeds, no opponents or an opponent of the wrong role; AdapterNotLoaded.
    """
    if not seeds or not opponents:
        raise ValueError(f"{len(seeds)} seeds and {len(opponents)} opponents: evaluation needs at least one of each")
    for opponent in opponents:
        if opponent.role is not role.other:
            raise ValueError(f"opponent {opponent.name} plays the {opponent.role}, must play the {role.other}")
    pairs = [(seed, opponent) for seed in seeds for opponent in opponents]
    episodes: list[Episode] = []
    for first in range(0, len(pairs), batch):
        chunk = pairs[first : first + batch]
        tables = [
            Table(
                scenario.generate(seed),
                {role: ModelPlayer(adapter), role.other: ScriptedPlayer(opponent)},
                seed * 131 + sum(opponent.name.encode()),
            )
            for seed, opponent in chunk
        ]
        dialogues = play(engine, scenario, tables, Sampling(max_tokens=max_message_tokens)).dialogues
        episodes.extend(
            _episode(dialogue, seed, opponent, role)
            for dialogue, (seed, opponent) in zip(dialogues, chunk, strict=True)
        )
        progress(len(episodes), len(pairs))
    return EvaluationResult(adapter, role, scenario.name, tuple(episodes))


def _episode(dialogue: Dialogue, seed: int, opponent: Negotiator, role: Role) -> Episode:
    outcome = dialogue.outcome
    return Episode(
        seed=seed,
        opponent=opponent.name,
        family=opponent.family,
        success=outcome.success,
        agreed=outcome.agreed,
        own_reward=outcome.rewards[role],
        other_reward=outcome.rewards[role.other],
        own_points=outcome.points[role],
        other_points=outcome.points[role.other],
        pareto_optimal=outcome.pareto_optimal,
        turns=len(dialogue.state.turns),
        tokens=sum(dialogue.transcripts[role].sampled),
        blocked_offers=sum(turn.blocked for turn in dialogue.state.turns if turn.role is role),
        close_reason=str(dialogue.state.closed),
    )
