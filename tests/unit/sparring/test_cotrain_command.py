"""What ``sparring cotrain`` says to input that will not do: the value, the limit, the remedy, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from negotiation.adapter import AdapterName
from negotiation.roles import Role
from sparring.cli import app
from training.artifacts import BaseModelRef, initialise_adapter
from training.config import AdapterSettings

pytestmark = pytest.mark.filterwarnings("ignore")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["cotrain", *arguments])
    return result.exit_code, result.output


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SPARRING_TRAINING__THREADS", "1")


def test_values_that_do_not_total_10_are_named_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "contexts.txt"
    file.write_text("1 4 4 1 1 2\n1 4 4 1 1 9\n", encoding="utf-8")
    code, said = run("--output", str(tmp_path / "run"), "--scenario", "deal-or-no-deal", "--contexts", str(file))
    assert code == 2
    assert "contexts.txt:2: " in said
    assert "worth 17 points, must be exactly 10: change the values or the counts" in " ".join(said.split())


def test_contexts_of_another_scenario_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "contexts.txt"
    file.write_text("", encoding="utf-8")
    code, said = run("--output", str(tmp_path / "run"), "--scenario", "telesales", "--contexts", str(file))
    assert code == 2
    assert "--contexts holds deal-or-no-deal scenarios, not telesales" in said


def test_an_adapter_for_another_base_is_refused(tmp_path: Path, tiny_model_dir: Path) -> None:
    from training.artifacts import file_sha256

    tiny = BaseModelRef(tiny_model_dir, "tiny", file_sha256(tiny_model_dir / "model.safetensors"))
    name = AdapterName(role=Role.AGENT, version=3)
    initialise_adapter(tiny, name, AdapterSettings(), 0, tmp_path / "agent@3")
    code, said = run("--output", str(tmp_path / "run"), "--start-agent", str(tmp_path / "agent@3"))
    assert code == 2
    said = " ".join(said.split())
    assert f"belongs to the base model 'tiny' with sha256 {tiny.sha256[:12]}" in said
    assert "train on that base, or start from an adapter of this one" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_an_error_and_not_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_TRAINING__DEVICE", "cuda")
    code, said = run("--output", str(tmp_path / "run"))
    assert code == 2
    assert "training.device is 'cuda', but torch finds no GPU here" in " ".join(said.split())


def test_a_method_that_is_none_is_named(tmp_path: Path) -> None:
    code, said = run("--output", str(tmp_path / "run"), "--method", "trilateral")
    assert code == 2
    assert "trilateral" in said
    assert "unilateral-frozen" in said


def test_scenarios_that_do_not_divide_among_the_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from training.config import TrainingSettings
    from training.grpo import grpo_arguments

    class Two:
        num_processes = 2

    monkeypatch.setattr("training.grpo.PartialState", lambda cpu: Two())
    with pytest.raises(ValueError, match="3 scenarios_per_step do not divide among 2 processes: choose"):
        grpo_arguments(TrainingSettings(scenarios_per_step=3), Role.AGENT, 1, Path("unused"))
