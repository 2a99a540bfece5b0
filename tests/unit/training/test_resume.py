"""A run that ends anywhere goes on when it is started again, and its adapters are those of an undisturbed run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from negotiation.adapter import WEIGHTS_FILE
from negotiation.roles import Role
from training.checkpoint import CheckpointMismatch
from training.cotrain import Cotraining
from training.methods import Method

New = Callable[..., Any]
OPTIONS: dict[str, Any] = {"steps": 3, "joint_share": 0.5, "scenarios_per_step": 2}


class PowerCut(BaseException):
    """Nothing catches it, as nothing catches a kill."""


def digests(result: Any) -> dict[Role, str]:
    return {
        role: hashlib.sha256((path / WEIGHTS_FILE).read_bytes()).hexdigest() for role, path in result.adapters.items()
    }


def again(run: Cotraining, new_cotraining: New, new_engine: New, **options: Any) -> Cotraining:
    """The same run in a new process: a fresh engine, the same folder."""
    fresh: Cotraining = new_cotraining(engine=new_engine(), output=run.output, **options)
    return fresh


@pytest.fixture(scope="module")
def undisturbed(new_cotraining: New) -> dict[Role, str]:
    return digests(new_cotraining(**OPTIONS).run())


def _in_the_rollout(run: Cotraining) -> None:
    calls = iter(range(100))
    generate = run.engine.generate

    def cut(requests: Any) -> Any:
        if next(calls) == 9:
            raise PowerCut
        return generate(requests)

    run.engine.generate = cut  # type: ignore[method-assign]


def _in_an_update(run: Cotraining) -> None:
    trainer = run.learners[Role.COUNTERPART].trainer
    compute, calls = trainer._compute_loss, iter(range(100))

    def cut(model: Any, inputs: Any) -> Any:
        if next(calls) == 1:
            raise PowerCut
        return compute(model, inputs)

    trainer._compute_loss = cut  # type: ignore[method-assign]


def _in_a_checkpoint(run: Cotraining) -> None:
    learner = run.learners[Role.COUNTERPART]
    save, calls = learner.save, iter(range(100))

    def cut(directory: Path) -> None:
        if next(calls) == 2:
            directory.mkdir(parents=True)
            (directory / "half").write_text("written")
            raise PowerCut
        save(directory)

    learner.save = cut  # type: ignore[method-assign]


def _between_the_two_exports(run: Cotraining) -> None:
    def cut(*_: Any) -> Any:
        raise PowerCut

    run.learners[Role.COUNTERPART].publish = cut  # type: ignore[method-assign]


@pytest.mark.parametrize("cut", [_in_the_rollout, _in_an_update, _in_a_checkpoint, _between_the_two_exports])
def test_a_run_cut_short_ends_bit_by_bit_as_if_it_had_not_been(
    new_cotraining: New, new_engine: New, undisturbed: dict[Role, str], cut: Callable[[Cotraining], None]
) -> None:
    run = new_cotraining(engine=new_engine(), **OPTIONS)
    cut(run)
    with pytest.raises(PowerCut):
        run.run()
    resumed = again(run, new_cotraining, new_engine, **OPTIONS)
    result = resumed.run()
    assert digests(result) == undisturbed
    assert [step.step for step in result.steps] == [1, 2, 3]
    assert result.tokens_trained == {role: sum(s.updates[role].tokens_trained for s in result.steps) for role in Role}


@pytest.mark.parametrize(
    "options",
    [
        {"method": Method.SELF_PLAY},
        {"method": Method.UNILATERAL_FROZEN},
        {"league_every": 1, "joint_share": 0.0},
        {"advantage": "running"},
    ],
)
def test_what_else_a_method_carries_from_step_to_step_is_kept_too(
    new_cotraining: New, new_engine: New, options: dict[str, Any]
) -> None:
    chosen = {**OPTIONS, **options}
    whole = digests(new_cotraining(**chosen).run())
    run = new_cotraining(engine=new_engine(), **chosen)
    _in_the_rollout(run)
    with pytest.raises(PowerCut):
        run.run()
    assert digests(again(run, new_cotraining, new_engine, **chosen).run()) == whole


def test_a_copy_that_just_left_the_league_is_still_there_for_the_checkpoint_before(
    new_cotraining: New, new_engine: New
) -> None:
    chosen = {**OPTIONS, "league_every": 1, "league_size": 1, "joint_share": 0.0}
    whole = digests(new_cotraining(**chosen).run())
    run = new_cotraining(engine=new_engine(), **chosen)
    _in_an_update(run)
    with pytest.raises(PowerCut):
        run.run()
    assert digests(again(run, new_cotraining, new_engine, **chosen).run()) == whole
    assert len(list((run.output / "league").iterdir())) == 1


def test_a_finished_run_is_read_not_repeated(new_cotraining: New, new_engine: New, spy_on: New) -> None:
    run = new_cotraining(**OPTIONS)
    result = run.run()
    spy = spy_on(new_engine())
    read = new_cotraining(engine=spy, output=run.output, **OPTIONS).run()
    assert spy.calls == []
    assert digests(read) == digests(result)
    assert read.price == result.price
    assert read.metrics == result.metrics


def test_another_runs_folder_is_refused(new_cotraining: New) -> None:
    run = new_cotraining(**OPTIONS)
    run.run()
    with pytest.raises(CheckpointMismatch, match="other settings"):
        new_cotraining(output=run.output, **{**OPTIONS, "seed": 5}).run()
