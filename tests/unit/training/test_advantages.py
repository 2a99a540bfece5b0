"""Advantages: per scenario and role, blind to the other role, silent where there is nothing to learn."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.advantages import GroupRelative, RunningBaseline, dead_share, pooled

REWARDS = st.floats(-1, 1, allow_nan=False)


@given(groups=st.lists(st.lists(REWARDS, min_size=4, max_size=4), min_size=1, max_size=5))
def test_group_relative_advantages_have_mean_0_and_deviation_1_within_each_group(groups: list[list[float]]) -> None:
    found = GroupRelative().advantages([reward for group in groups for reward in group], 4)
    for number, group in enumerate(groups):
        own = found[4 * number : 4 * number + 4]
        if max(group) - min(group) < 1e-8:
            assert own == [None] * 4
            continue
        values = [a for a in own if a is not None]
        assert sum(values) == pytest.approx(0, abs=1e-6)
        # The constant that keeps the division stable makes it a little less than 1 where rewards hardly differ.
        assert math.sqrt(sum(v * v for v in values) / 3) <= 1 + 1e-6
        assert all(
            a <= b
            for (r, a) in zip(group, values, strict=True)
            for (q, b) in zip(group, values, strict=True)
            if r < q
        )


@given(group=st.lists(REWARDS, min_size=3, max_size=3), shift=st.floats(-5, 5), scale=st.floats(0.5, 4))
def test_a_groups_advantages_do_not_depend_on_the_scale_of_its_rewards(
    group: list[float], shift: float, scale: float
) -> None:
    if max(group) - min(group) < 0.1:
        return
    plain, other = (GroupRelative().advantages(g, 3) for g in (group, [scale * r + shift for r in group]))
    assert plain == pytest.approx(other, abs=0.01)


def test_a_dialogue_without_a_reward_counts_in_no_mean() -> None:
    found = GroupRelative().advantages([0.9, None, 0.1, 0.5], 4)
    assert found[1] is None
    assert [a for a in found if a is not None] == pytest.approx(GroupRelative().advantages([0.9, 0.1, 0.5], 3))


def test_dead_groups_are_counted() -> None:
    assert dead_share(GroupRelative().advantages([1, 1, 0, 1, None, 0.5], 2), 2) == pytest.approx(2 / 3)


def test_the_running_baseline_follows_the_mean_and_survives_a_restart() -> None:
    estimator = RunningBaseline(decay=0.5)
    assert estimator.advantages([1.0, 0.0, None], 3) == [0.5, -0.5, None]
    assert estimator.advantages([1.0, 1.0, 1.0], 3) == [0.5, 0.5, 0.5]
    resumed = RunningBaseline(decay=0.5)
    resumed.restore(estimator.state())
    assert resumed.advantages([0.0, 1.0], 2) == estimator.advantages([0.0, 1.0], 2) == [-0.75, 0.25]


def test_the_running_baseline_has_something_to_say_where_a_group_has_not() -> None:
    estimator = RunningBaseline()
    estimator.advantages([0.0, 0.0], 2)
    assert dead_share(estimator.advantages([1.0, 1.0], 2), 2) == 0


@given(own=st.lists(REWARDS, min_size=3, max_size=3), other=st.lists(REWARDS, min_size=3, max_size=3))
def test_pooled_advantages_depend_on_the_other_roles_rewards(own: list[float], other: list[float]) -> None:
    """Which is why only the ablation uses them."""
    shifted = [r + 2.0 for r in other]
    plain, moved = (pooled(own, rewards, 3) for rewards in (other, shifted))
    assert plain != moved or None in plain
