"""Training contexts: reproducible, mixed as asked, and never one that will judge a candidate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.catalogue import NAMES, scenario_named
from negotiation.roles import Role
from pipelines.calibration import (
    FIRST_HELD_OUT_SEED,
    TRAINING_BLOCK,
    TrainingContexts,
    held_out_seeds,
    training_seed,
    usable_contexts,
)

Versions = st.integers(1, 90_000)


@given(Versions, Versions, st.integers(0, TRAINING_BLOCK - 1), st.integers(1, 10_000))
def test_no_training_seed_is_ever_a_held_out_one(one: int, other: int, index: int, count: int) -> None:
    assert training_seed(one, index) not in held_out_seeds(other, count)
    if one != other:
        assert not set(held_out_seeds(one, 10)) & set(held_out_seeds(other, 10))
        assert training_seed(one, index) != training_seed(other, index)


def test_a_block_of_seeds_that_is_used_up_is_refused() -> None:
    with pytest.raises(ValueError, match="outside the round's block"):
        training_seed(1, TRAINING_BLOCK)
    with pytest.raises(ValueError, match="10001 scenarios"):
        held_out_seeds(1, 10_001)
    with pytest.raises(ValueError, match="no training seeds left"):
        training_seed(FIRST_HELD_OUT_SEED // TRAINING_BLOCK, 0)


@pytest.mark.parametrize("name", NAMES)
def test_live_contexts_keep_what_the_agent_knew_and_draw_the_counterpart_anew(name: str) -> None:
    scenario = scenario_named(name)
    met = [scenario.generate(seed) for seed in range(8)]
    live, skipped = usable_contexts(scenario, met)
    assert skipped == 0
    contexts = TrainingContexts(scenario, 3, live, live_share=1.0)
    drawn = [contexts(index) for index in range(60)]
    for context in drawn:
        scenario.validate(context)
        assert any(
            context.public == seen.public and context.views[Role.AGENT] == seen.views[Role.AGENT] for seen in met
        )
    per_stock = {
        str(c.public): {str(o.views[Role.COUNTERPART]) for o in drawn if o.public == c.public} for c in drawn
    }
    assert max(len(customers) for customers in per_stock.values()) > 1
    assert [contexts(index) for index in range(60)] == drawn


def test_the_live_share_is_kept_and_none_live_means_all_generated() -> None:
    scenario = scenario_named("telesales")
    live, _ = usable_contexts(scenario, [scenario.generate(seed) for seed in range(5)])
    stocks = [context.public for context in live]
    mixed = TrainingContexts(scenario, 1, live, live_share=0.5)
    share = sum(mixed(index).public in stocks for index in range(400)) / 400
    assert 0.4 < share < 0.6
    alone = TrainingContexts(scenario, 1, (), live_share=1.0)
    assert alone(7) == scenario.generate(training_seed(1, 7))


def test_invalid_and_held_out_contexts_are_left_out_and_counted() -> None:
    scenario = scenario_named("telesales")
    good, held_out = scenario.generate(1), scenario.generate(FIRST_HELD_OUT_SEED + 5)
    no_view = good.model_copy(update={"views": {}})
    usable, skipped = usable_contexts(scenario, [good, held_out, no_view])
    assert (len(usable), skipped) == (1, 2)
    assert usable[0].views == {Role.AGENT: good.views[Role.AGENT]}
