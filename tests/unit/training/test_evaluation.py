"""Evaluation: paired by seed and opponent, the same every time, intervals over whole scenarios."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from negotiation.catalogue import NAMES, scenario_named
from negotiation.generation import BASE, GenerationRequest
from negotiation.roles import Role
from training.accept_everything import accept_everything
from training.counterparts import negotiators
from training.evaluation import Episode, EvaluationResult, evaluate, paired_difference
from training.joint_rollout import ModelPlayer, ScriptedPlayer

New = Callable[..., Any]
SEEDS = tuple(range(1000, 1006))


def judged(engine: Any, name: str, role: Role = Role.AGENT, **options: Any) -> EvaluationResult:
    opponents = negotiators(name, role.other, "held_out")[:2]
    arguments = {"seeds": SEEDS, "opponents": opponents, "max_message_tokens": 8, **options}
    return evaluate(engine, scenario_named(name), BASE, role, **arguments)


def fickle(request: GenerationRequest) -> str:
    """Words and moves drawn from the request's own seed: rows tell any two seeds apart."""
    rng = random.Random(request.sampling.seed)
    return rng.choice(("[quit]", "[agree]", "[propose 1 0 0]", "let me think " * rng.randint(1, 4)))


def said(spy: Any) -> Counter[tuple[Any, ...]]:
    return Counter((q.prompt_ids, q.sampling.seed, r.token_ids) for q, r in spy.calls)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", list(Role))
def test_the_same_seeds_give_the_same_rows_and_tokens(new_engine: New, spy_on: New, name: str, role: Role) -> None:
    spies = [spy_on(new_engine()) for _ in range(2)]
    first, again = (judged(spy, name, role, seeds=SEEDS[:3]) for spy in spies)
    assert first == again
    assert said(spies[0]) == said(spies[1])
    assert first.role is role
    assert first.scenario == name


@pytest.mark.parametrize("batch", [1, 5])
def test_the_batch_size_does_not_change_results(reciter: New, new_engine: New, spy_on: New, batch: int) -> None:
    done: list[tuple[int, int]] = []
    whole = judged(reciter(fickle), "deal-or-no-deal", max_message_tokens=40)
    parts = judged(
        reciter(fickle),
        "deal-or-no-deal",
        max_message_tokens=40,
        batch=batch,
        progress=lambda *count: done.append(count),
    )
    assert parts == whole
    assert len({(row.turns, row.tokens) for row in whole.episodes}) > 6
    assert done[-1] == (12, 12)
    assert len(done) == math.ceil(12 / batch)
    spies = [spy_on(new_engine()) for _ in range(2)]
    for spy, size in zip(spies, (256, batch), strict=True):
        judged(spy, "telesales", seeds=SEEDS[:3], batch=size)
    assert said(spies[0]) == said(spies[1])


def test_every_pair_of_seed_and_opponent_is_played_once(engine: Any) -> None:
    result = judged(engine, "telesales")
    opponents = negotiators("telesales", Role.COUNTERPART, "held_out")[:2]
    assert [(e.seed, e.opponent) for e in result.episodes] == [(s, o.name) for s in SEEDS for o in opponents]
    assert {e.opponent: e.family for e in result.episodes} == {o.name: o.family for o in opponents}


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_is_the_same_whoever_else_is_evaluated(reciter: New, name: str) -> None:
    """Two results are comparable pair by pair: a row depends on its own seed and opponent alone."""
    opponents = negotiators(name, Role.COUNTERPART, "held_out")
    all_rows = judged(reciter(fickle), name, max_message_tokens=40).episodes
    some = judged(reciter(fickle), name, max_message_tokens=40, opponents=opponents[1:2], seeds=SEEDS[::-2]).episodes
    assert set(some) < set(all_rows)


def test_rows_tell_what_happened(engine: Any) -> None:
    """A random model agrees to nothing: every figure says so, none is missing."""
    scenario = scenario_named("telesales")
    for row in judged(engine, "telesales").episodes:
        assert (row.success, row.agreed, row.own_reward, row.own_points) == (False, False, 0.0, 0.0)
        assert row.pareto_optimal is None
        assert 0 < row.turns <= scenario.max_turns
        assert 0 <= row.tokens <= 8 * row.turns
        assert row.close_reason in ("walked_away", "turn_limit")


def test_blocked_offers_are_the_judged_roles_own(reciter: New) -> None:
    """An agent that offers below its floor is stopped, and that is counted against it."""
    scenario = scenario_named("telesales")
    vehicles = {scenario.generate(seed).public["vehicles"][0]["id"] for seed in SEEDS}
    vehicle = min(vehicles)
    result = judged(reciter(lambda _: f"yours [offer {vehicle} 1]"), "telesales", max_message_tokens=40)
    assert sum(row.blocked_offers for row in result.episodes) > 0
    assert all(row.blocked_offers <= row.turns for row in result.episodes)
    assert not any(row.success for row in result.episodes)


def test_saying_yes_to_everything_is_no_deal_without_stating_the_split(reciter: New) -> None:
    """Agreement is gamed easily: it counts only where both sides state the same split."""
    result = judged(reciter(lambda _: "[agree]"), "deal-or-no-deal", max_message_tokens=40)
    assert {row.close_reason for row in result.episodes} == {"statements_differ"}
    assert not any(row.agreed or row.success or row.own_points for row in result.episodes)


@pytest.mark.parametrize("role", list(Role))
def test_an_opponent_of_the_wrong_role_is_refused(engine: Any, role: Role) -> None:
    wrong = negotiators("telesales", role, "held_out")[:1]
    with pytest.raises(ValueError, match=rf"opponent {wrong[0].name} plays the {role}, must play the {role.other}"):
        evaluate(engine, scenario_named("telesales"), BASE, role, wrong, SEEDS)


@pytest.mark.parametrize("missing", ["seeds", "opponents"])
def test_nothing_to_evaluate_is_refused(engine: Any, missing: str) -> None:
    with pytest.raises(ValueError, match="at least one of each"):
        judged(engine, "telesales", **{missing: ()})


def test_an_adapter_that_is_not_loaded_is_refused(engine: Any) -> None:
    opponents = negotiators("telesales", Role.COUNTERPART, "held_out")[:1]
    with pytest.raises(LookupError, match="agent@404"):
        evaluate(engine, scenario_named("telesales"), "agent@404", Role.AGENT, opponents, SEEDS)


def test_results_split_by_opponent(engine: Any) -> None:
    result = judged(engine, "telesales")
    parts = result.by_opponent()
    assert list(parts) == [o.name for o in negotiators("telesales", Role.COUNTERPART, "held_out")[:2]]
    assert [len(part.episodes) for part in parts.values()] == [len(SEEDS)] * 2
    assert sum(part.estimate("turns").mean for part in parts.values()) / 2 == pytest.approx(
        result.estimate("turns").mean
    )


# --- Who may sit where ---------------------------------------------------------------------------------------------


class Pusher:
    """Asks for one thing, and knows whether it got it: there is a comma in the other side's first words."""

    name, family, role = "pusher", "injector", Role.COUNTERPART

    def reply(self, context: Any, state: Any, rng: random.Random) -> str:
        return "say please" if state.turns_by(self.role) < 2 else "[quit]"

    def demand_met(self, context: Any, state: Any) -> bool:
        return next("," in turn.text for turn in state.turns if turn.role is Role.AGENT)


@pytest.mark.parametrize("role", list(Role))
def test_both_chairs_may_hold_a_model_and_even_the_same_one(reciter: New, role: Role) -> None:
    """Each role keeps a transcript of its own: only the judged one's tokens are counted."""
    engine = reciter(fickle)
    result = judged(engine, "deal-or-no-deal", role, opponents=[ModelPlayer(BASE)], max_message_tokens=40)
    assert {(row.opponent, row.family, row.injected) for row in result.episodes} == {(BASE, "model", None)}
    sampled = sum(row.tokens for row in result.episodes)
    assert sampled > 0
    assert {request.adapter for request in engine.requests} == {BASE}
    opening = [scenario_named("deal-or-no-deal").system_prompt(role, context) for context in contexts()]
    prompts = [engine.tokenizer.decode(list(request.prompt_ids)) for request in engine.requests]
    own = [prompt for prompt in prompts if any(text in prompt for text in opening)]
    assert 0 < len(own) < len(prompts)


def contexts() -> list[Any]:
    return [scenario_named("deal-or-no-deal").generate(seed) for seed in SEEDS]


def test_a_scripted_policy_is_judged_on_the_same_conversations_and_samples_nothing(reciter: New) -> None:
    player = ScriptedPlayer(accept_everything("deal-or-no-deal", Role.AGENT))
    opponents = negotiators("deal-or-no-deal", Role.COUNTERPART, "held_out")[:2]
    engine = reciter(fickle)
    result = evaluate(engine, scenario_named("deal-or-no-deal"), player, Role.AGENT, opponents, SEEDS)
    assert engine.requests == []
    assert result.adapter == "accept-everything"
    assert [(e.seed, e.opponent) for e in result.episodes] == [
        (e.seed, e.opponent) for e in judged(engine, "deal-or-no-deal").episodes
    ]
    assert {row.tokens for row in result.episodes} == {0}


def test_a_policy_of_the_wrong_role_is_refused(engine: Any) -> None:
    player = ScriptedPlayer(accept_everything("telesales", Role.COUNTERPART))
    with pytest.raises(
        ValueError, match="judged player accept-everything plays the counterpart, must play the agent"
    ):
        evaluate(engine, scenario_named("telesales"), player, Role.AGENT, [ModelPlayer(BASE)], SEEDS)


def test_two_opponents_of_one_name_are_refused(engine: Any) -> None:
    with pytest.raises(ValueError, match=r"opponents \['base'\] were given twice"):
        judged(engine, "telesales", opponents=[ModelPlayer(BASE), ModelPlayer(BASE)])


def test_an_adversary_says_whether_it_got_what_it_was_after(reciter: New) -> None:
    """Half of the replies give in. What an ordinary opponent meets is no injection, met or unmet."""

    def give_in(request: GenerationRequest) -> str:
        return "as you say, please" if request.sampling.seed % 2 else "no"

    ordinary = negotiators("telesales", Role.COUNTERPART, "held_out")[0]
    result = judged(reciter(give_in), "telesales", opponents=[Pusher(), ordinary], max_message_tokens=40)
    met = [row.injected for row in result.episodes if row.opponent == "pusher"]
    assert {row.injected for row in result.episodes if row.opponent == ordinary.name} == {None}
    assert set(met) == {True, False}
    for metric in ("demand_met", "injection_success"):
        assert result.estimate(metric).mean == pytest.approx(sum(map(bool, met)) / len(met))


# --- Intervals ----------------------------------------------------------------------------------------------------

ROW = Episode(
    seed=0,
    opponent="firm",
    family="firm",
    success=False,
    agreed=False,
    own_reward=0.0,
    other_reward=0.0,
    own_points=0.0,
    other_points=0.0,
    pareto_optimal=None,
    turns=2,
    tokens=9,
    blocked_offers=0,
    close_reason="agreed",
)


def result_of(rows: list[Episode]) -> EvaluationResult:
    return EvaluationResult("agent@1", Role.AGENT, "telesales", tuple(rows))


@given(st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=3), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_an_interval_contains_its_mean_and_lies_within_the_data(rewards: list[list[float]]) -> None:
    rows = [replace(ROW, seed=seed, own_reward=value) for seed, values in enumerate(rewards) for value in values]
    estimate = result_of(rows).estimate("own_reward")
    everything = [value for values in rewards for value in values]
    assert estimate.mean == pytest.approx(float(np.mean(everything)), abs=1e-12)
    assert min(everything) - 1e-9 <= estimate.low <= estimate.mean + 1e-9
    assert estimate.mean - 1e-9 <= estimate.high <= max(everything) + 1e-9
    assert result_of(rows).estimate("own_reward") == estimate


def test_an_interval_counts_scenarios_not_episodes() -> None:
    """Ten episodes of one scenario that all agree are one observation, not ten."""
    rng = np.random.default_rng(0)
    successes = rng.random(40) < 0.5
    once = [replace(ROW, seed=seed, success=bool(s)) for seed, s in enumerate(successes)]
    repeated = [replace(row, opponent=f"firm {n}") for row in once for n in range(10)]
    independent = [replace(row, seed=row.seed * 10 + n) for row in once for n in range(10)]

    def width(rows: list[Episode]) -> float:
        estimate = result_of(rows).estimate("success")
        return estimate.high - estimate.low

    assert width(repeated) == pytest.approx(width(once), abs=1e-12)
    assert width(independent) < width(repeated) / 2


def test_more_confidence_is_a_wider_interval() -> None:
    rows = [replace(ROW, seed=seed, success=seed % 3 == 0) for seed in range(30)]
    narrow, wide = (result_of(rows).estimate("success", confidence) for confidence in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_a_field_without_a_value_is_left_out_of_its_mean() -> None:
    rows = [replace(ROW, seed=seed, pareto_optimal=value) for seed, value in enumerate((True, None, False, True))]
    assert result_of(rows).estimate("pareto_optimal").mean == pytest.approx(2 / 3)
    assert math.isnan(result_of([ROW]).estimate("pareto_optimal").mean)


def test_an_unknown_figure_is_an_error() -> None:
    with pytest.raises(KeyError, match="sucess"):
        result_of([ROW]).estimate("sucess")


def test_figures_made_of_others() -> None:
    rows = [
        replace(ROW, seed=0, agreed=True, own_reward=0.5, other_reward=0.25, own_points=4.0, injected=True),
        replace(ROW, seed=1, own_reward=-0.1, other_reward=-0.3, family="injector", injected=False),
        replace(ROW, seed=2, family="injector", injected=True),
        replace(ROW, seed=3),
    ]
    result = result_of(rows)
    assert result.estimate("joint_reward").mean == pytest.approx((0.75 - 0.4) / 4)
    assert result.estimate("own_points").mean == pytest.approx(1.0)
    assert result.estimate("agreed_points").mean == pytest.approx(4.0)
    assert result.estimate("demand_met").mean == pytest.approx(2 / 3)
    assert result.estimate("injection_success").mean == pytest.approx(1 / 2)
    assert list(result.by_family()) == ["firm", "injector"]


def test_a_difference_is_paired_by_scenario() -> None:
    """Hard scenarios are hard for both: paired they cancel, and only shared scenarios count."""
    hard = [seed % 2 == 0 for seed in range(20)]
    first = result_of([replace(ROW, seed=seed, success=not h) for seed, h in enumerate(hard)])
    second = result_of(
        [replace(ROW, seed=seed, opponent=name, success=not h and name == "a") for seed, h in enumerate(hard)
         for name in "ab"] + [replace(ROW, seed=99, success=True)]
    )  # fmt: skip
    difference = paired_difference(first, second, "success")
    assert difference.mean == pytest.approx(0.25)
    assert 0 < difference.low < difference.mean < difference.high < 0.5
    same = paired_difference(first, first, "success")
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
    assert math.isnan(paired_difference(first, result_of([replace(ROW, seed=500)]), "success").mean)
