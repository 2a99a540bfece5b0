"""The demo's table says what was measured and decided, promoted or not."""

from __future__ import annotations

import pytest
from rich.console import Console

from negotiation.roles import Role
from pipelines.gate import Interval
from pipelines.round_state import RoleVerdict, RoundResult
from sparring.demo.customers import Call, Tally
from sparring.demo.table import Ending, print_ending


def verdict(role: Role, promoted: bool) -> RoleVerdict:
    before = {"success": Interval(0.5, 0.45, 0.55), "own_reward": Interval(-0.3, -0.35, -0.25)}
    after = {"success": Interval(0.625, 0.57, 0.68), "own_reward": Interval(0.4, 0.35, 0.45)}
    difference = {"success": Interval(0.125, 0.06, 0.19), "own_reward": Interval(0.1, 0.05, 0.15)}
    return RoleVerdict(
        role=role,
        champion=f"{role}@1",
        candidate=f"{role}@2",
        promoted=promoted,
        reasons=("The success rises.",) if promoted else ("No improvement is shown.",),
        metric="success",
        before=before,
        after=after,
        difference=difference,
        by_opponent={},
        conversations=256,
        scenarios=64,
    )


def ending(promoted: bool) -> Ending:
    during = Tally(requests=1234, failures=0)
    during.calls = [Call("a", "agent@1", True, True, 1.0, 6), Call("a", "agent@2", True, True, 1.0, 6)]
    result = RoundResult(
        version=2,
        run_id="r",
        scenario="telesales",
        trained_on=240,
        steps=16,
        seconds=100.0,
        verdicts={Role.AGENT: verdict(Role.AGENT, promoted), Role.COUNTERPART: verdict(Role.COUNTERPART, False)},
        report="report.html",
    )
    serving = "agent@2" if promoted else "agent@1"
    urls = {"API docs": "http://127.0.0.1:8700/docs", "MLflow": "http://127.0.0.1:5600"}
    return Ending(result, serving, Tally(), during, 1.5 if promoted else None, 300.0, 2_500_000_000, urls)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("promoted", [True, False])
def test_all_figures_are_there_and_fit_the_terminal(promoted: bool, width: int) -> None:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_ending(console, ending(promoted))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    for expected in (
        "agent success % 50.0 [45.0,55.0] 62.5 [57.0,68.0] 12.5 [6.0,19.0]",
        "counterpart reward -0.30 [-0.35,-0.25] 0.40 [0.35,0.45] 0.10 [0.05,0.15]",
        "1,234 requests served, 0 failed; calls: 1 with agent@1, 1 with agent@2",
        "http://127.0.0.1:8700/docs",
        "http://127.0.0.1:5600",
        "5.0 minutes, 2.50 GB",
    ):
        assert expected in flat
    if promoted:
        assert "agent@2 promoted over agent@1. The success rises." in flat
    else:
        assert "agent@2 not promoted, agent@1 stays. No improvement is shown." in flat
