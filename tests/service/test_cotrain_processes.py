"""``sparring cotrain`` as real processes: killed and started again, and as one run over two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from negotiation.adapter import WEIGHTS_FILE
from negotiation.roles import Role

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]
STEPS = 4
SETTINGS = {
    "SPARRING_TRAINING__SCENARIOS_PER_STEP": "2",
    "SPARRING_TRAINING__GROUP_SIZE": "4",
    "SPARRING_TRAINING__THREADS": "1",
    "SPARRING_TRAINING__VALIDATION_EVERY": "0",
    # Earlier counterparts as partners: copies that processes share and that a resumed run must find again.
    "SPARRING_TRAINING__LEAGUE_EVERY": "1",
    "SPARRING_TRAINING__LEAGUE_SIZE": "2",
    "SPARRING_TRAINING__JOINT_SHARE": "0.5",
    "OMP_NUM_THREADS": "1",
}


def command(output: Path, *launcher: str) -> list[str]:
    options = ("--output", str(output), "--steps", str(STEPS), "--seed", "3")
    return [*(launcher or (sys.executable,)), "-m", "sparring.cli", "cotrain", *options]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, **SETTINGS, "SPARRING_STATE_DIR": str(folder / "state"), **more}


def weights(output: Path) -> dict[Role, bytes]:
    return {role: (output / f"{role}@1" / WEIGHTS_FILE).read_bytes() for role in Role}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run(command(folder / "run"), env=environment(folder), check=True, capture_output=True)
    return folder / "run"


def test_kill_9_again_and_again_ends_with_the_same_adapters(undisturbed: Path, tmp_path: Path) -> None:
    """Killed at whatever point each new step's checkpoint happens to find it; the same command finishes the run."""
    output, killed = tmp_path / "run", 0
    for step in range(1, STEPS):
        process = subprocess.Popen(command(output), env=environment(tmp_path), stderr=subprocess.DEVNULL)
        while process.poll() is None and not list(output.glob(f"checkpoints/step-*{step}")):
            time.sleep(0.05)
        # Somewhere inside the step that follows: its rollout, an update, or the next checkpoint.
        time.sleep(0.4 * step)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    finished = subprocess.run(command(output), env=environment(tmp_path), check=True, capture_output=True, text=True)
    assert killed > 0
    assert finished.stdout.split() == [str(output / f"{role}@1") for role in Role]
    assert weights(output) == weights(undisturbed)
    steps = json.loads((output / "result.json").read_text(encoding="utf-8"))["steps"]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))


def curves(output: Path) -> list[dict[str, Any]]:
    steps = json.loads((output / "result.json").read_text(encoding="utf-8"))["steps"]
    return [update for step in steps for _, update in sorted(step["updates"].items())]


def test_two_processes_train_as_one_does(undisturbed: Path, tmp_path: Path) -> None:
    """``accelerate launch``: each plays half of the groups; loss, gradient and weights are those of one process."""
    launcher = [str(Path(sys.executable).with_name("accelerate")), "launch", "--multi_gpu", "--num_processes", "2"]
    launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    # Without a GPU the same launcher runs its processes on the CPU.
    where = environment(tmp_path, ACCELERATE_USE_CPU="true")
    subprocess.run(command(tmp_path / "run", *launcher), env=where, check=True, capture_output=True)
    for one, two in zip(curves(undisturbed), curves(tmp_path / "run"), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-2)
        assert two["tokens_trained"] == one["tokens_trained"]
        assert two["zero_variance_groups"] == pytest.approx(one["zero_variance_groups"])
    for role in Role:
        one, two = (load_file(folder / f"{role}@1" / WEIGHTS_FILE) for folder in (undisturbed, tmp_path / "run"))
        largest = max(tensor.abs().max().item() for tensor in one.values())
        assert max((one[key] - two[key]).abs().max().item() for key in one) < 0.05 * largest
