"""The gate: fair, monotone, and deaf to anything that is not shown."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.config import GateSettings
from pipelines.gate import GateError, decide

SETTINGS = GateSettings(resamples=500)


@dataclass(frozen=True)
class Row:
    seed: int
    opponent: str
    success: bool
    own_reward: float
    blocked_offers: int = 0


def play(rate: float, *, seed: int = 0, scenarios: int = 40, opponents: int = 2, reward: float = 1.0) -> list[Row]:
    rng = random.Random(seed)
    return [
        Row(n, f"o{k}", won := rng.random() < rate, reward if won else 0.0)
        for n in range(scenarios)
        for k in range(opponents)
    ]


Rates = st.floats(0, 1)


def test_a_clearly_better_candidate_is_promoted_with_its_reasons() -> None:
    decision = decide(play(0.9, seed=1), play(0.4, seed=2), SETTINGS)
    assert decision.promote
    assert decision.differences["success"].low > 0
    assert (decision.pairs, decision.scenarios) == (80, 40)
    assert set(decision.by_opponent) == {"o0", "o1"}
    assert "success rises" in decision.reasons[0]


@given(rate=Rates, seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_an_identical_candidate_is_never_promoted(rate: float, seed: int) -> None:
    rows = play(rate, seed=seed)
    decision = decide(rows, rows, SETTINGS)
    assert not decision.promote
    assert all((d.mean, d.low, d.high) == (0, 0, 0) for d in decision.differences.values())


@given(a=Rates, b=Rates)
@settings(max_examples=25, deadline=None)
def test_swapping_the_two_mirrors_every_interval_and_at_most_one_way_promotes(a: float, b: float) -> None:
    one, two = play(a, seed=1), play(b, seed=2)
    there, back = decide(one, two, SETTINGS), decide(two, one, SETTINGS)
    for metric, difference in there.differences.items():
        mirrored = back.differences[metric]
        assert difference.low == pytest.approx(-mirrored.high, abs=1e-9)
        assert difference.high == pytest.approx(-mirrored.low, abs=1e-9)
    assert not (there.promote and back.promote)
    assert there.champion == back.candidate


@given(a=Rates, b=Rates, improved=st.sets(st.integers(0, 79)))
@settings(max_examples=25, deadline=None)
def test_winning_more_conversations_never_loses_a_promotion(a: float, b: float, improved: set[int]) -> None:
    champion, candidate = play(a, seed=1), play(b, seed=2)
    better = [
        replace(row, success=True, own_reward=max(row.own_reward, 1.0)) if n in improved else row
        for n, row in enumerate(candidate)
    ]
    before, after = decide(candidate, champion, SETTINGS), decide(better, champion, SETTINGS)
    assert after.differences["success"].low >= before.differences["success"].low
    assert after.promote >= before.promote


def test_the_order_of_rows_does_not_matter() -> None:
    one, two = play(0.6, seed=1), play(0.5, seed=2)
    shuffled = random.Random(0).sample(one, len(one))
    assert decide(shuffled, two, SETTINGS) == decide(one, two, SETTINGS)


def test_repeating_a_scenario_against_like_opponents_is_not_more_evidence() -> None:
    """Rows of one scenario move together here, so ten opponents must not give a narrower interval than one."""

    def copied(rows: list[Row], copies: int) -> list[Row]:
        return [replace(row, opponent=f"{row.opponent}-{k}") for row in rows for k in range(copies)]

    one, two = play(0.6, seed=1, opponents=1), play(0.5, seed=2, opponents=1)
    few = decide(one, two, SETTINGS).differences["success"]
    many = decide(copied(one, 10), copied(two, 10), SETTINGS).differences["success"]
    assert many.high - many.low == pytest.approx(few.high - few.low)


def test_better_success_at_the_cost_of_own_reward_is_refused() -> None:
    candidate = play(0.9, seed=1, reward=0.1)
    decision = decide(candidate, play(0.5, seed=2, reward=1.0), SETTINGS)
    assert decision.differences["success"].low > 0
    assert not decision.promote
    assert any("own reward is lower" in reason for reason in decision.reasons)


def test_more_offers_beyond_authority_are_refused() -> None:
    candidate = [replace(row, blocked_offers=1) for row in play(0.9, seed=1)]
    decision = decide(candidate, play(0.4, seed=2), SETTINGS)
    assert not decision.promote
    assert "beyond authority" in decision.reasons[0]


def test_the_metric_and_the_least_effect_are_settings() -> None:
    candidate, champion = play(0.9, seed=1, reward=1.0), play(0.5, seed=2, reward=1.0)
    assert decide(candidate, champion, SETTINGS.model_copy(update={"metric": "own_reward"})).promote
    assert not decide(candidate, champion, SETTINGS.model_copy(update={"min_effect": 0.9})).promote


@pytest.mark.parametrize(
    ("candidate", "champion", "problem"),
    [
        (play(0.5), [replace(row, seed=row.seed + 1000) for row in play(0.5)], "share no scenario"),
        (play(0.5), play(0.5)[:-1], "1 conversations were played by one only, first scenario 39 against 'o1'"),
        (play(0.5) * 2, play(0.5), "the candidate played 80 conversations twice"),
        (play(0.5, scenarios=5), play(0.5, scenarios=5), "5 scenarios were played, at least 20"),
        ([], [], "share no scenario"),
    ],
)
def test_what_can_not_be_compared_is_refused(candidate: list[Row], champion: list[Row], problem: str) -> None:
    with pytest.raises(GateError, match=problem):
        decide(candidate, champion, SETTINGS)
