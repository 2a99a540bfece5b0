"""Two models of ``bench/lewis2017.py`` negotiate on given contexts; the scores that Lewis et al. 2017 report.

The judged model sits in the agent's chair, its opponent in the counterpart's. Each context is played from both sides
(once with each side's values in the agent's chair), and chance decides who speaks first, as there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.generation import Engine, Sampling
from negotiation.roles import Role
from negotiation.scenario import Context
from training.joint_rollout import Dialogue, ModelPlayer, Table, play

_RESAMPLES = 2000
_CONFIDENCE = 0.95
MEASURES = ("score_all", "other_score_all", "score_agreed", "other_score_agreed", "agreed", "pareto_optimal")
"""Points out of 10 of the judged model and of its opponent; shares of agreed dialogues, of Pareto-optimal deals."""


@dataclass(frozen=True)
class Talk:
    """One finished negotiation. ``scenario`` numbers the context, ``points`` are the judged model's."""

    scenario: int
    agreed: bool
    points: float
    other_points: float
    pareto_optimal: bool | None
    turns: int
    closed: str


@dataclass(frozen=True)
class Estimate:
    """A mean with a 95 % bootstrap interval that resamples whole contexts; NaN where there is nothing to average."""

    mean: float
    low: float
    high: float


def negotiate(
    engine: Engine,
    judged: str,
    opponent: str,
    contexts: Sequence[Context],
    *,
    temperature: float,
    seed: int,
    max_message_tokens: int,
    show: Callable[[int, int], None] = lambda _, __: None,
    batch: int = 128,
) -> tuple[list[Talk], list[Dialogue]]:
    """Play every context from both sides. ``show`` gets (dialogues done, dialogues in all)."""
    scenario, sampling = DealOrNoDeal(), Sampling(max_tokens=max_message_tokens, temperature=temperature)
    players = {Role.AGENT: ModelPlayer(judged), Role.COUNTERPART: ModelPlayer(opponent)}
    numbered: list[tuple[int, Table]] = []
    for number, context in enumerate(contexts):
        for swapped in (False, True):
            chance = random.Random(f"first speaker:{seed}:{number}:{swapped}")
            views = {role: context.views[role.other if swapped else role] for role in Role}
            seen = context.model_copy(update={"views": views, "first_speaker": chance.choice(list(Role))})
            numbered.append((number, Table(seen, dict(players), chance.getrandbits(40))))
    talks: list[Talk] = []
    dialogues: list[Dialogue] = []
    for first in range(0, len(numbered), batch):
        part = numbered[first : first + batch]
        played = play(engine, scenario, [table for _, table in part], sampling).dialogues
        talks += [_talk(number, dialogue) for (number, _), dialogue in zip(part, played, strict=True)]
        dialogues += played
        show(len(talks), len(numbered))
    return talks, dialogues


def scores(talks: Sequence[Talk]) -> dict[str, Estimate]:
    """Each of MEASURES with its interval."""
    values: dict[str, Callable[[Talk], float | None]] = {
        "score_all": lambda talk: talk.points,
        "other_score_all": lambda talk: talk.other_points,
        "score_agreed": lambda talk: talk.points if talk.agreed else None,
        "other_score_agreed": lambda talk: talk.other_points if talk.agreed else None,
        "agreed": lambda talk: float(talk.agreed),
        "pareto_optimal": lambda talk: None if talk.pareto_optimal is None else float(talk.pareto_optimal),
    }
    return {measure: _estimate(talks, values[measure]) for measure in MEASURES}


def _talk(number: int, dialogue: Dialogue) -> Talk:
    outcome = dialogue.outcome
    return Talk(
        scenario=number,
        agreed=outcome.agreed,
        points=outcome.points[Role.AGENT],
        other_points=outcome.points[Role.COUNTERPART],
        pareto_optimal=outcome.pareto_optimal,
        turns=len(dialogue.state.turns),
        closed=str(dialogue.state.closed),
    )


def _estimate(talks: Sequence[Talk], value: Callable[[Talk], float | None]) -> Estimate:
    by_scenario: dict[int, list[float]] = {}
    for talk in talks:
        found = value(talk)
        if found is not None:
            by_scenario.setdefault(talk.scenario, []).append(found)
    if not by_scenario:
        return Estimate(float("nan"), float("nan"), float("nan"))
    totals = np.array([sum(found) for found in by_scenario.values()])
    counts = np.array([len(found) for found in by_scenario.values()])
    mean = float(totals.sum() / counts.sum())
    if len(by_scenario) < 2 or np.allclose(totals / counts, mean):
        return Estimate(mean, mean, mean)

    def ratio(total: Any, count: Any, axis: int = -1) -> Any:
        return total.sum(axis=axis) / count.sum(axis=axis)

    interval = bootstrap(
        (totals, counts),
        ratio,
        paired=True,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=_CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(mean, float(interval.low), float(interval.high))
