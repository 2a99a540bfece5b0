"""The base model's build: reproducible, usable as it is, and blind to held-out families."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from negotiation.generation import GenerationRequest, Sampling
from serving.engines.in_process import InProcessEngine
from training import counterparts
from training.base_model import TINY
from training.warm_start import DIGEST_FILE, REPORT_FILE, BuildReport, WarmStartSettings, build_base_model


def build(
    output: Path, *, progress: Callable[[int, int, float], None] = lambda *_: None, **changes: Any
) -> BuildReport:
    tiny = {"dialogues": 16, "copy_steps": 1, "steps": 3, "batch_size": 2, "threads": 1, "size": TINY}
    options: dict[str, Any] = {**tiny, **changes}
    return build_base_model(output, WarmStartSettings(**options), progress)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuildReport]:
    output = tmp_path_factory.mktemp("models") / "base"
    return output, build(output)


def test_the_same_settings_build_the_same_model(built: tuple[Path, BuildReport], tmp_path: Path) -> None:
    output, report = built
    assert build(tmp_path / "again") == report
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (output / "tokenizer.json").read_bytes()
    assert build(tmp_path / "other", seed=1).sha256 != report.sha256


def test_the_digest_is_that_of_the_weights_and_is_written_beside_them(built: tuple[Path, BuildReport]) -> None:
    output, report = built
    digest = hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()
    assert report.sha256 == digest == (output / DIGEST_FILE).read_text().strip()
    assert json.loads((output / REPORT_FILE).read_text())["sha256"] == digest
    assert not list(output.glob("*.bin"))


def test_a_built_model_generates_in_the_engine(built: tuple[Path, BuildReport]) -> None:
    output, report = built
    engine = InProcessEngine(output, report.sha256, max_adapters=1, max_batch=2, threads=1)
    try:
        [result] = engine.generate([GenerationRequest((2, 8, 9), sampling=Sampling(max_tokens=4, seed=1))])
    finally:
        engine.close()
    assert 1 <= len(result.token_ids) <= 4


def test_held_out_families_are_never_used(
    built: tuple[Path, BuildReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any held-out negotiator in the house the very same model comes out."""
    for scenario, split in list(counterparts._POOL):
        if split == "held_out":
            monkeypatch.setitem(counterparts._POOL, (scenario, split), ())
    assert build(tmp_path / "without").sha256 == built[1].sha256


def test_training_families_are_used(
    built: tuple[Path, BuildReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter-test: fewer training negotiators make another model."""
    for (scenario, split), pool in list(counterparts._POOL.items()):
        if split == "warm_start":
            first = {negotiator.role: negotiator for negotiator in reversed(pool)}
            monkeypatch.setitem(counterparts._POOL, (scenario, split), tuple(first.values()))
    assert build(tmp_path / "fewer").sha256 != built[1].sha256


def test_it_learns(tmp_path: Path) -> None:
    losses: list[float] = []
    report = build(
        tmp_path / "base", steps=40, copy_steps=0, batch_size=4, progress=lambda _, __, loss: losses.append(loss)
    )
    assert losses[-1] < 0.9 * losses[0]
    assert report.final_loss == losses[-1]


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty: choose a new directory"):
        build(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    assert build(tmp_path, steps=1).steps == 1


@pytest.mark.parametrize(("field", "value"), [("dialogues", 1), ("steps", 0), ("telesales_share", 2), ("sede", 1)])
def test_settings_out_of_bounds_name_their_field(field: str, value: float) -> None:
    with pytest.raises(ValidationError, match=field):
        WarmStartSettings(**{field: value})
