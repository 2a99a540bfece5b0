"""Where a roll-back leads, and how a round is drawn."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from sparring.errors import RefusedError
from sparring.progress import RoundBars
from sparring.versions import Version, previous_champion


def version(number: int, state: str, earned: bool) -> Version:
    return Version(f"agent@{number}", "agent", number, state, earned, (), "telesales")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(("ready", "reserved", "skipped")), st.booleans()), max_size=8),
    st.integers(1, 10),
)
def test_a_roll_back_leads_to_the_newest_earlier_version_that_earned_it(
    entries: list[tuple[str, bool]], current: int
) -> None:
    versions = [version(number, *entry) for number, entry in enumerate(entries, start=1)]
    fit = [v.version for v in versions if v.version < current and v.earned and v.state == "ready"]
    if fit:
        assert previous_champion(versions, current).version == max(fit)
    else:
        with pytest.raises(RefusedError, match="no earlier champion"):
            previous_champion(versions, current)


def test_a_round_is_drawn_for_both_roles_within_80_columns() -> None:
    shown = io.StringIO()
    with RoundBars(Console(file=shown, width=80)) as bars:
        bars.show("idle", 0, 0, {})
        agent, counterpart = {"reward": 0.25, "success": 0.5, "kl": 0.1}, {"reward": -0.3, "success": 0.4}
        bars.show("training", 16, 16, {"agent": agent, "counterpart": counterpart})
        bars.show("evaluating", 0, 2, {})
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (agents,) = [line for line in lines if "training agent" in line]
    (counterparts,) = [line for line in lines if "training counterpart" in line]
    assert "16/16" in agents
    assert "reward 0.25 success 0.50" in agents
    assert "reward -0.30 success 0.40" in counterparts
