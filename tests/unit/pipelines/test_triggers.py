"""When a round starts: by drift, count or time, each named with its figures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.roles import Role
from pipelines.config import PipelineSettings
from pipelines.gate import Interval
from pipelines.round_state import (
    Phase,
    RoleVerdict,
    RoundResult,
    RoundState,
    agent_champion,
    round_directory,
    save_state,
)
from pipelines.triggers import Champion, Evidence, Trigger, find_trigger, upper_bound

SETTINGS = PipelineSettings(min_conversations=10, round_every_hours=24, drift_min_conversations=50)
CHAMPION = Champion("agent@3", 0.6)


def found(**evidence: Any) -> tuple[Trigger | None, str]:
    finding = find_trigger(Evidence(**{"new_conversations": 0, "elapsed": timedelta(0), **evidence}), SETTINGS)
    return finding.trigger, finding.reason


def test_by_count() -> None:
    assert found(new_conversations=9) == (None, "9 of 10 conversations are new")
    assert found(new_conversations=10) == (Trigger.COUNT, "10 conversations are new, 10 start a round")


def test_by_time_only_with_something_new_and_only_where_asked_for() -> None:
    day = timedelta(hours=24)
    assert found(elapsed=day)[0] is None
    assert found(elapsed=day, new_conversations=1)[0] is Trigger.TIME
    assert found(elapsed=day - timedelta(seconds=1), new_conversations=1)[0] is None
    never = SETTINGS.model_copy(update={"round_every_hours": None})
    assert find_trigger(Evidence(1, timedelta(days=365)), never).trigger is None


def test_by_drift_only_where_it_is_shown() -> None:
    assert found(champion=CHAMPION, outcomes=100, successes=40)[0] is Trigger.DRIFT
    assert "agent@3 succeeded in 40 of 100" in found(champion=CHAMPION, outcomes=100, successes=40)[1]
    # Lower, but well within chance.
    assert found(champion=CHAMPION, outcomes=100, successes=56)[0] is None
    assert found(champion=CHAMPION, outcomes=49, successes=0)[0] is None
    assert found(champion=Champion("agent@1", None), outcomes=100, successes=0)[0] is None
    assert found(outcomes=100, successes=0)[0] is None


def test_the_bound_is_that_of_wilson() -> None:
    # 40 of 100 at 95 %, one-sided: z = 1.6449; (p + z2/2n + z sqrt(p q / n + z2/4n2)) / (1 + z2/n)
    assert upper_bound(40, 100, 0.95) == pytest.approx(0.4825, abs=5e-4)


@given(st.integers(1, 500), st.data())
def test_drift_is_never_found_above_the_gates_value(count: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, count))
    gate = successes / count
    trigger, _ = found(champion=Champion("agent@2", gate), outcomes=count, successes=successes)
    assert trigger is None


def verdict(candidate: str, champion: str, promoted: bool, success: float) -> RoleVerdict:
    measured = {"success": Interval(success, 0.0, 1.0)}
    return RoleVerdict(Role.AGENT, champion, candidate, promoted, (), "success", {}, measured, {}, {}, 1, 1)


def test_the_champions_gate_value_is_that_of_the_round_that_promoted_it(tmp_path: Path) -> None:
    assert agent_champion(tmp_path) is None
    rounds = [
        ("agent@2", "agent@1", False, 0.1),
        ("agent@3", "agent@1", True, 0.6),
        ("agent@4", "agent@3", False, 0.9),
    ]
    names = []
    for number, row in enumerate(rounds, start=2):
        result = RoundResult(number, "r", "telesales", 0, 1, 1.0, {Role.AGENT: verdict(*row)}, "report.html")
        state = RoundState(
            phase=Phase.DONE,
            version=number,
            run_id="r",
            scenario="telesales",
            champions={},
            conversations=0,
            result=result,
            finished_at=datetime(2030, 1, 1, tzinfo=UTC),
        )
        save_state(round_directory(tmp_path, number), state)
        names.append(agent_champion(tmp_path))
    assert names == [Champion("agent@1", None), Champion("agent@3", 0.6), Champion("agent@3", 0.6)]
