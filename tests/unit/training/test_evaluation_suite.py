"""The examination: what stands apart, what stands beside, and what the mismatch is made of."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from negotiation.catalogue import NAMES, scenario_named
from negotiation.generation import BASE
from negotiation.roles import Role
from training import evaluation_suite
from training.accept_everything import accept_everything
from training.counterparts import negotiators
from training.evaluation import Episode, EvaluationResult, evaluate
from training.evaluation_report import JUDGED, SuiteReport, mismatch, policy_figures
from training.evaluation_suite import run_suite
from training.joint_rollout import ModelPlayer, ScriptedPlayer

New = Callable[..., Any]
SEEDS = tuple(range(2000, 2006))


class Stub:
    """A counterpart that takes any split at once, or walks away from every one."""

    def __init__(self, name: str, role: Role, agrees: bool) -> None:
        self.name = self.family = name
        self.role, self.agrees = role, agrees

    def reply(self, context: Any, state: Any, rng: random.Random) -> str:
        if not self.agrees:
            return "[quit]"
        return accept_everything("deal-or-no-deal", self.role).reply(context, state, rng)


class StubAdversary(Stub):
    def demand_met(self, context: Any, state: Any) -> bool:
        return bool(context.seed % 2)


@cache
def pool(scenario: str, role: Role, split: str) -> tuple[Any, ...]:
    """Held-out counterparts and the enterprise agree; adversaries, whom only the agent meets, walk away."""
    if split == "adversary" and role is Role.COUNTERPART:
        return (StubAdversary("injector", role, False),)
    if split in ("held_out", "validation", "train"):
        return (Stub(f"{split} easy", role, True), Stub(f"{split} hard", role, split == "held_out"))
    if split == "enterprise" and role is Role.COUNTERPART:
        return (Stub("enterprise", role, False),)
    raise ValueError(f"no {split} negotiators for {role}")


@pytest.fixture(autouse=True)
def _pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_suite, "negotiators", pool)


def splitter(request: Any) -> str:
    """A model that asks for nothing; it agrees to nothing, and can not state what was agreed."""
    return "take it [propose 0 0 0]"


def examined(engine: Any, role: Role = Role.AGENT, **options: Any) -> SuiteReport:
    arguments: dict[str, Any] = {
        "training_partners": pool("deal-or-no-deal", role.other, "train"),
        "seeds": SEEDS,
        "max_message_tokens": 40,
        **options,
    }
    return run_suite(engine, scenario_named("deal-or-no-deal"), role, "agent@7", **arguments)


@pytest.fixture(scope="module")
def report(reciter: New) -> SuiteReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_suite, "negotiators", pool)
        return examined(reciter(splitter), counterpart_adapter="counterpart@7")


def success(report: SuiteReport, group: str, policy: str = JUDGED) -> float:
    found = report.policies[policy].groups[group].overall["success"]
    assert found is not None
    return found.mean


def test_adversaries_and_the_enterprise_stay_out_of_the_average(report: SuiteReport) -> None:
    """Held-out counterparts always agree with a policy that accepts everything, the others never do."""
    accepting = report.policies["accept_everything"]
    assert report.averaged_over == ("held_out",)
    assert list(accepting.groups)[:3] == ["held_out", "enterprise", "adversary"]
    assert success(report, "held_out", "accept_everything") == 1
    assert success(report, "enterprise", "accept_everything") == 0
    assert success(report, "adversary", "accept_everything") == 0
    assert accepting.average == accepting.groups["held_out"].overall
    adversary = accepting.groups["adversary"]
    assert adversary.by_opponent["injector"]["demand_met"] is not None
    assert adversary.by_family["injector"]["injection_success"] == adversary.overall["demand_met"]
    assert adversary.overall["demand_met"].mean == pytest.approx(0.5)  # type: ignore[union-attr]
    assert accepting.average["demand_met"] is None


def test_the_average_is_over_every_ordinary_split_that_was_asked_for(reciter: New) -> None:
    found = examined(reciter(splitter), splits=("validation", "held_out", "held_out", "adversary"))
    assert found.averaged_over == ("validation", "held_out")
    average = found.policies["accept_everything"].average["success"]
    assert average is not None
    assert average.mean == pytest.approx(3 / 4)


def test_baselines_play_the_same_scenarios_and_counterparts(report: SuiteReport) -> None:
    assert {policy: of.policy for policy, of in report.policies.items()} == {
        "judged": "agent@7",
        "warm_start": BASE,
        "accept_everything": "accept-everything",
    }
    groups = [
        {name: (group.conversations, list(group.by_opponent)) for name, group in of.groups.items()}
        for of in report.policies.values()
    ]
    assert groups[0] == groups[1] == groups[2]
    assert groups[0]["frozen_warm_start"] == (len(SEEDS), [BASE])
    # The reciter says the same under every name, so the judged adapter gains nothing over the warm start.
    assert {figure.mean for of in report.gains.values() for figure in of.values() if figure is not None} == {0.0}


def test_each_adapter_sits_in_both_chairs(report: SuiteReport) -> None:
    assert {name: (of.policy, of.role) for name, of in report.chairs.items()} == {
        "agent@7 as agent": ("agent@7", Role.AGENT),
        "agent@7 as counterpart": ("agent@7", Role.COUNTERPART),
        "counterpart@7 as counterpart": ("counterpart@7", Role.COUNTERPART),
        "counterpart@7 as agent": ("counterpart@7", Role.AGENT),
    }


def test_one_adapter_alone_is_swapped_too(reciter: New) -> None:
    assert list(examined(reciter(splitter)).chairs) == ["agent@7 as agent", "agent@7 as counterpart"]


def test_what_was_played_once_is_not_played_again(reciter: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base judged is its own warm start; progress goes on to the end all the same."""
    played, done = list[tuple[Any, ...]](), list[tuple[int, int]]()

    def counting(
        engine: Any, scenario: Any, player: Any, role: Role, opponents: Any, *rest: Any, **options: Any
    ) -> Any:
        played.append((player.name, role, *(opponent.name for opponent in opponents)))
        return evaluate(engine, scenario, player, role, opponents, *rest, **options)

    monkeypatch.setattr(evaluation_suite, "evaluate", counting)
    run_suite(
        reciter(splitter),
        scenario_named("deal-or-no-deal"),
        Role.AGENT,
        BASE,
        training_partners=[ModelPlayer(BASE)],
        seeds=SEEDS[:2],
        splits=["held_out"],
        max_message_tokens=40,
        progress=lambda *count: done.append(count),
    )
    held_out = ("held_out easy", "held_out hard")
    assert played == [
        (BASE, Role.AGENT, *held_out),
        (BASE, Role.AGENT, BASE),
        ("accept-everything", Role.AGENT, *held_out),
        ("accept-everything", Role.AGENT, BASE),
        (BASE, Role.COUNTERPART, *held_out),
    ]
    assert done == sorted(done)
    assert done[-1] == (3 * 4 * 2 + 2 * 2 * 2,) * 2


def test_splits_without_anybody_are_named(reciter: New) -> None:
    found = examined(reciter(splitter), Role.COUNTERPART)
    assert found.absent_splits == ("enterprise", "adversary")
    assert "adversary" not in found.policies[JUDGED].groups
    with pytest.raises(ValueError, match=r"none of the splits \['adversary'\] has counterparts for the counterpart"):
        examined(reciter(splitter), Role.COUNTERPART, splits=["adversary"])
    with pytest.raises(ValueError, match="no training partners"):
        examined(reciter(splitter), training_partners=())


def test_endpoints_stand_apart(reciter: New) -> None:
    endpoint = Stub("some-model", Role.COUNTERPART, False)
    found = examined(reciter(splitter), endpoints=[endpoint], seeds=SEEDS[:2])
    assert list(found.policies[JUDGED].groups["endpoint"].by_opponent) == ["some-model"]
    assert found.averaged_over == ("held_out",)


# --- Mismatch -----------------------------------------------------------------------------------------------------


def rows(opponent: str, successes: list[bool]) -> EvaluationResult:
    row = Episode(0, opponent, opponent, False, False, 0.0, 0.0, 0.0, 0.0, None, 2, 9, 0, "agreed")
    episodes = tuple(replace(row, seed=seed, success=success) for seed, success in enumerate(successes))
    return EvaluationResult("agent@7", Role.AGENT, "telesales", episodes)


def test_the_mismatch_is_partner_minus_held_out_per_scenario() -> None:
    partner, held_out = rows("partner", [True, True, True, False]), rows("stranger", [True, False, False, False])
    found = mismatch(partner, held_out)
    assert found is not None
    assert found.mean == pytest.approx(0.5)
    assert 0 <= found.low < found.mean < found.high <= 1
    assert mismatch(partner, partner) == mismatch(held_out, held_out)
    assert mismatch(partner, None) is None


def test_the_mismatch_of_a_report(reciter: New) -> None:
    """Half of the training partners walk away from a policy that all held-out counterparts agree with."""
    found = examined(reciter(splitter))
    accepting = found.mismatches["accept_everything"]
    assert accepting is not None
    assert accepting.mean == pytest.approx(-0.5)
    assert found.mismatch == found.mismatches[JUDGED]
    assert list(found.mismatch_by_partner) == ["train easy", "train hard"]
    assert examined(reciter(splitter), splits=["validation"]).mismatch is None


# --- As data ------------------------------------------------------------------------------------------------------


def test_a_report_survives_json_without_nan(report: SuiteReport) -> None:
    text = report.to_json()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    plain = json.loads(text, parse_constant=refuse)
    assert plain["schema_version"] == 1
    assert plain["policies"]["judged"]["average"]["demand_met"] is None
    assert SuiteReport.from_json(text) == report


def test_a_report_of_another_version_is_refused(report: SuiteReport) -> None:
    with pytest.raises(ValueError, match="schema_version is 99, this program reads 1"):
        SuiteReport.from_json(replace(report, schema_version=99).to_json())


def test_intervals_of_tables_count_scenarios() -> None:
    """Ten counterparts who behave alike make ten times the conversations and not one more observation."""
    one = rows("a", [seed % 3 == 0 for seed in range(30)])
    ten = replace(one, episodes=tuple(replace(e, opponent=str(n)) for e in one.episodes for n in range(10)))
    narrow, wide = (policy_figures({"held_out": result}, ["held_out"]).average["success"] for result in (ten, one))
    assert narrow == wide


# --- Accepting everything -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_accepting_everything_agrees_with_whoever_proposes(reciter: New, role: Role) -> None:
    """Training families all propose; every deal is stated alike by both sides."""
    scenario, player = scenario_named("deal-or-no-deal"), accept_everything("deal-or-no-deal", role)
    opponents = negotiators("deal-or-no-deal", role.other, "train")
    result = evaluate(reciter(splitter), scenario, ScriptedPlayer(player), role, opponents, range(30))
    assert result.estimate("agreed").mean == 1
    assert result.estimate("own_points").mean < 5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", list(Role))
def test_accepting_everything_only_makes_legal_moves(reciter: New, name: str, role: Role) -> None:
    scenario, player = scenario_named(name), accept_everything(name, role)
    opponents = negotiators(name, role.other, "held_out")
    result = evaluate(reciter(splitter), scenario, ScriptedPlayer(player), role, opponents, range(20))
    assert result.estimate("agreed").mean > 0
    for seed in range(20):
        context = scenario.generate(seed)
        state = scenario.begin(context)
        while state.closed is None:
            speaker = state.next_speaker
            speaking = player if speaker is role else opponents[0]
            text = speaking.reply(context, state, random.Random(seed))
            state = scenario.advance(context, state, speaker, text)
            assert state.turns[-1].rejected is None or state.turns[-1].blocked


def test_a_blocked_acceptance_is_not_repeated() -> None:
    """A bid under the floor is accepted once, stopped once, and left alone until there is a new bid."""
    scenario, player = scenario_named("telesales"), accept_everything("telesales", Role.AGENT)
    context = scenario.generate(0).model_copy(update={"first_speaker": Role.COUNTERPART})
    vehicle = context.public["vehicles"][0]["id"]
    state = scenario.begin(context)
    said = []
    for bid in (f"[offer {vehicle} 250]", "well?", f"[offer {vehicle} 500]", "well?"):
        state = scenario.advance(context, state, Role.COUNTERPART, bid)
        text = player.reply(context, state, random.Random(0))
        said.append("[accept]" in text)
        state = scenario.advance(context, state, Role.AGENT, text)
    assert said == [True, False, True, False]
    assert sum(turn.blocked for turn in state.turns) == 2


def test_a_scenario_without_such_a_policy_is_an_error() -> None:
    with pytest.raises(ValueError, match="no accept-everything policy for scenario 'chess'"):
        accept_everything("chess", Role.AGENT)
