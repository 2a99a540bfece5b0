"""A checkpoint is there whole or not at all, and belongs to one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.checkpoint import CheckpointMismatch, Checkpoints, fingerprint


def save(folder: Path) -> None:
    folder.mkdir()
    (folder / "weights").write_text(folder.parent.name)


def test_the_newest_is_found_and_the_older_goes(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "mine")
    assert checkpoints.latest() is None
    for step in (1, 2, 10):
        checkpoints.write(step, {"steps": [step]}, {"agent": save})
    latest = checkpoints.latest()
    assert latest is not None
    assert (latest.step, latest.state["steps"]) == (10, [10])
    assert (latest.learner("agent") / "weights").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000010"]


def test_a_failure_on_the_way_leaves_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "mine")
    checkpoints.write(1, {}, {"agent": save})

    def fails(folder: Path) -> None:
        save(folder)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        checkpoints.write(2, {}, {"agent": save, "counterpart": fails})
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 1
    checkpoints.write(2, {}, {"agent": save, "counterpart": save})
    again = checkpoints.latest()
    assert again is not None
    assert again.step == 2


def test_another_runs_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    Checkpoints(tmp_path, fingerprint({"seed": 1})).write(3, {}, {})
    with pytest.raises(CheckpointMismatch, match=r"step-000003 was written by a run with other settings"):
        Checkpoints(tmp_path, fingerprint({"seed": 2})).latest()


def test_a_fingerprint_tells_every_part_and_no_order() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert len({fingerprint({"a": a, "b": b}) for a in (1, 2) for b in (1, 2)}) == 4
