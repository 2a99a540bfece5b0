"""Evaluation of frozen policies: paired seeded scenarios against frozen counterparts, row by row.

Two policies evaluated with the same seeds and opponents are comparable pair by pair: contexts, opponents' traits
and every random number are the same, so only the policy differs. Always look at success, own reward, agreement
and Pareto share together: a policy that accepts everything agrees always.

Either chair may hold a model with an adapter or a scripted player. ``training.evaluation_suite`` sets what is found
here beside its baselines.

Run: ``sparring evaluate``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from negotiation.generation import Engine, Sampling
from negotiation.roles import Role
from negotiation.scenario import Scenario
from training.counterparts import Negotiator
from training.joint_rollout import Dialogue, ModelPlayer, Player, ScriptedPlayer, Table, play

RESAMPLES = 2000
"""Bootstrap resamples of an interval: its ends then move by about 0.002 of a share between two seeds."""
INJECTOR = "injector"
"""The family of adversaries that write instructions to the model into their messages."""
MODEL_FAMILY = "model"
"""The family of every counterpart that the engine's model speaks for."""


@dataclass(frozen=True)
class Episode:
    """One evaluated conversation.

    ``blocked_offers`` counts the judged role's offers beyond authority, ``tokens`` what its model sampled (0 for a
    scripted player). ``injected``: whether an adversary got what it was after; None for an opponent that is none.
    """

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
    injected: bool | None = None


_DERIVED: Mapping[str, Callable[[Episode], float | None]] = {
    "joint_reward": lambda e: e.own_reward + e.other_reward,
    "agreed_points": lambda e: e.own_points if e.agreed else None,
    "demand_met": lambda e: e.injected,
    "injection_success": lambda e: e.injected if e.family == INJECTOR else None,
}
METRICS = (
    "success",
    "agreed",
    "own_reward",
    "joint_reward",
    "pareto_optimal",
    "own_points",
    "agreed_points",
    "turns",
    "tokens",
    "blocked_offers",
    "injection_success",
    "demand_met",
)
"""What a table shows of a policy, all per conversation.

``success`` is Success@1 and ``joint_reward`` the sum of both roles' rewards. ``own_points`` are over all
conversations, ``agreed_points`` and ``pareto_optimal`` over those that ended in a deal. ``demand_met`` is over all
adversaries, ``injection_success`` over injectors.
"""


@dataclass(frozen=True)
class Estimate:
    """A mean with a bootstrap interval that resamples whole scenarios."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class EvaluationResult:
    """All episodes of one policy in one role. ``adapter`` is the policy's name, also where no adapter speaks."""

    adapter: str
    role: Role
    scenario: str
    episodes: tuple[Episode, ...]

    def estimate(self, metric: str, confidence: float = 0.95) -> Estimate:
        """Mean of a metric or an episode's field over all, clustered by scenario. What has no value is left out.

        NaN where nothing has a value. Raises KeyError for an unknown metric.
        """
        by_seed = self.by_seed(metric)
        if not by_seed:
            return Estimate(float("nan"), float("nan"), float("nan"))
        totals = np.array([sum(values) for values in by_seed.values()])
        counts = np.array([len(values) for values in by_seed.values()], dtype=float)
        return _cluster_bootstrap(totals, counts, confidence)

    def by_seed(self, metric: str) -> dict[int, list[float]]:
        """The values of a metric, scenario by scenario."""
        read = _DERIVED.get(metric) or (lambda episode: vars(episode)[metric])
        found: dict[int, list[float]] = {}
        for episode in self.episodes:
            value = read(episode)
            if value is not None:
                found.setdefault(episode.seed, []).append(float(value))
        return found

    def by_opponent(self) -> dict[str, EvaluationResult]:
        """The same result split by opponent."""
        return self._split(lambda episode: episode.opponent)

    def by_family(self) -> dict[str, EvaluationResult]:
        """The same result split by the opponents' families."""
        return self._split(lambda episode: episode.family)

    def _split(self, key: Callable[[Episode], str]) -> dict[str, EvaluationResult]:
        names = dict.fromkeys(key(episode) for episode in self.episodes)
        return {
            name: EvaluationResult(
                self.adapter, self.role, self.scenario, tuple(e for e in self.episodes if key(e) == name)
            )
            for name in names
        }


def paired_difference(
    first: EvaluationResult, second: EvaluationResult, metric: str, confidence: float = 0.95
) -> Estimate:
    """Mean of ``first`` minus mean of ``second``, paired by scenario: only scenarios that both played count.

    The two may have met different opponents; each scenario then compares its own two means. The interval resamples
    scenarios. NaN where no scenario has a value in both.
    """
    left, right = first.by_seed(metric), second.by_seed(metric)
    shared = [seed for seed in left if seed in right]
    if not shared:
        return Estimate(float("nan"), float("nan"), float("nan"))
    differences = np.array([float(np.mean(left[seed]) - np.mean(right[seed])) for seed in shared])
    return _cluster_bootstrap(differences, np.ones(len(shared)), confidence)


def _cluster_bootstrap(totals: NDArray[np.float64], counts: NDArray[np.float64], confidence: float) -> Estimate:
    """Percentile interval of sum(totals) / sum(counts), one entry a scenario (Cameron, Gelbach, Miller 2008)."""
    mean = float(totals.sum() / counts.sum())
    if len(totals) < 2 or np.allclose(totals / counts, mean):
        return Estimate(mean, mean, mean)
    weights = _resamples(len(totals))
    tail = (1 - confidence) / 2
    low, high = np.quantile((weights @ totals) / (weights @ counts), (tail, 1 - tail))
    return Estimate(mean, float(low), float(high))


@lru_cache(maxsize=32)
def _resamples(scenarios: int) -> NDArray[np.float64]:
    """How often each scenario is drawn, [resamples, scenarios]. The same for every metric, so that they agree."""
    rng = np.random.default_rng(0)
    return rng.multinomial(scenarios, np.full(scenarios, 1 / scenarios), RESAMPLES).astype(float)


def evaluate(
    engine: Engine,
    scenario: Scenario,
    adapter: str | Player,
    role: Role,
    opponents: Sequence[Negotiator | Player],
    seeds: Sequence[int],
    *,
    max_message_tokens: int = 40,
    batch: int = 256,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> EvaluationResult:
    """Play every seed against every opponent once, at temperature 1.

    ``adapter`` is the judged policy: an adapter's name, or any player. Raises ValueError for no seeds, no opponents,
    two opponents of one name, or a scripted player in the wrong chair; AdapterNotLoaded.
    """
    if not seeds or not opponents:
        raise ValueError(f"{len(seeds)} seeds and {len(opponents)} opponents: evaluation needs at least one of each")
    judged = ModelPlayer(adapter) if isinstance(adapter, str) else adapter
    players = [as_player(opponent) for opponent in opponents]
    _require_role(judged, role, "judged player")
    for player in players:
        _require_role(player, role.other, "opponent")
    if repeated := [name for name, count in Counter(player.name for player in players).items() if count > 1]:
        raise ValueError(f"opponents {repeated} were given twice: rows are told apart by seed and opponent's name")
    pairs = [(seed, player) for seed in seeds for player in players]
    episodes: list[Episode] = []
    for first in range(0, len(pairs), batch):
        chunk = pairs[first : first + batch]
        tables = [
            # The judged policy's name is no part of the seed: that is what pairs two policies.
            Table(scenario.generate(seed), {role: judged, role.other: player}, seed * 131 + sum(player.name.encode()))
            for seed, player in chunk
        ]
        dialogues = play(engine, scenario, tables, Sampling(max_tokens=max_message_tokens)).dialogues
        episodes.extend(
            _episode(dialogue, seed, player, role) for dialogue, (seed, player) in zip(dialogues, chunk, strict=True)
        )
        progress(len(episodes), len(pairs))
    return EvaluationResult(judged.name, role, scenario.name, tuple(episodes))


def as_player(opponent: Negotiator | Player) -> Player:
    """A negotiator in its chair; players stay as they are."""
    return opponent if isinstance(opponent, ModelPlayer | ScriptedPlayer) else ScriptedPlayer(opponent)


def _require_role(player: Player, role: Role, what: str) -> None:
    if isinstance(player, ScriptedPlayer) and player.negotiator.role is not role:
        raise ValueError(f"{what} {player.name} plays the {player.negotiator.role}, must play the {role}")


def _episode(dialogue: Dialogue, seed: int, opponent: Player, role: Role) -> Episode:
    outcome = dialogue.outcome
    transcript = dialogue.transcripts.get(role)
    return Episode(
        seed=seed,
        opponent=opponent.name,
        family=opponent.negotiator.family if isinstance(opponent, ScriptedPlayer) else MODEL_FAMILY,
        success=outcome.success,
        agreed=outcome.agreed,
        own_reward=outcome.rewards[role],
        other_reward=outcome.rewards[role.other],
        own_points=outcome.points[role],
        other_points=outcome.points[role.other],
        pareto_optimal=outcome.pareto_optimal,
        turns=len(dialogue.state.turns),
        tokens=sum(transcript.sampled) if transcript is not None else 0,
        blocked_offers=sum(turn.blocked for turn in dialogue.state.turns if turn.role is role),
        close_reason=str(dialogue.state.closed),
        injected=_demand_met(dialogue, opponent),
    )


def _demand_met(dialogue: Dialogue, opponent: Player) -> bool | None:
    if not isinstance(opponent, ScriptedPlayer):
        return None
    demand_met = getattr(opponent.negotiator, "demand_met", None)
    return None if demand_met is None else bool(demand_met(dialogue.context, dialogue.state))
