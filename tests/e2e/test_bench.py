"""The benchmarks run as docs/ says, with small numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def bench(name: str, *arguments: str, cwd: Path) -> str:
    """Run one of the benchmarks; its output in one line."""
    environment = {**os.environ, "COLUMNS": "200", "SPARRING_STATE_DIR": str(cwd / "state")}
    command = [sys.executable, str(ROOT / "bench" / f"{name}.py"), *arguments]
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return " ".join(result.stdout.split())


def test_mismatch_trains_judges_and_compares_and_does_no_job_twice(tmp_path: Path) -> None:
    options = ("--work", str(tmp_path / "work"), "--quick", "--scenario", "telesales", "--output", str(tmp_path))
    said = bench("mismatch", *options, cwd=tmp_path)
    assert "static-counterpart mismatch" in said
    assert "telesales: bilateral minus ..." in said
    figures = json.loads((tmp_path / "mismatch.json").read_text())["telesales"]
    assert set(figures["levels"]) == {"warm-start", "unilateral-scripted", "bilateral"}
    for row in figures["levels"].values():
        interval = row["held-out success"]
        assert interval["low"] <= interval["mean"] <= interval["high"]
    assert (tmp_path / "mismatch.png").stat().st_size > 10_000
    made = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("*.gz")}
    assert len(made) == 3
    bench("mismatch", *options, cwd=tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("*.gz")} == made


def test_training_cost_prints_every_ratio_with_its_goal(tmp_path: Path) -> None:
    said = bench("training_cost", "--quick", "--threads", "1", "--output", str(tmp_path / "cost.json"), cwd=tmp_path)
    ratios = json.loads((tmp_path / "cost.json").read_text())["ratios"]
    assert len(ratios) == 3
    for name, values in ratios.items():
        assert name in said
        assert all(value > 0 for value in values)


def test_gpu_training_runs_on_a_cpu_with_a_tiny_setting(tmp_path: Path) -> None:
    bench("gpu_training", "--quick", "--device", "cpu", "--output", str(tmp_path / "gpu.json"), cwd=tmp_path)
    figures = json.loads((tmp_path / "gpu.json").read_text())["figures"]
    assert figures["tokens sampled a second"] > 0
    assert figures["own tokens trained a second"] > 0


def test_learning_compares_both_roles_with_the_warm_start(tmp_path: Path) -> None:
    small = {"STEPS": "2", "SCENARIOS_PER_STEP": "4", "GROUP_SIZE": "4", "THREADS": "1"}
    # Wide enough for the table: in 80 columns its headings are broken.
    environment = {**os.environ, "COLUMNS": "140"}
    environment |= {f"SPARRING_TRAINING__{name}": value for name, value in small.items()}
    output = tmp_path / "learning.json"
    command = [sys.executable, str(ROOT / "bench" / "learning.py"), "--seeds", "1", "--scenarios", "20"]
    result = subprocess.run(
        [*command, "--output", str(output)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "warm start" in " ".join(result.stdout.split())
    run = json.loads(output.read_text())["1"]
    assert set(run) == {"agent", "counterpart"}
    for decision in run.values():
        assert decision["scenarios"] == 20
        assert {"mean", "low", "high"} <= set(decision["differences"]["success"])


def test_serving_cost(tmp_path: Path) -> None:
    """The parts that need no vLLM server."""
    output = tmp_path / "serving.json"
    command = [sys.executable, str(ROOT / "bench" / "serving_cost"), "--quick", "--output", str(output)]
    command += ["--part", "stub", "--part", "engine"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    found = json.loads(output.read_text())
    for rate in ("100", "1000"):
        for kind in ("bare", "sparring"):
            # At 1,000 a second a slow machine refuses some, as it should.
            assert found["stub"][rate][kind]["failed"] == 0 or (kind, rate) == ("sparring", "1000")
            assert found["stub"][rate][kind]["requests"] > 0
    assert list(found["stub"]["conversations"]) == ["SQLite"]
    assert found["stub"]["conversations"]["SQLite"]["failed"] == 0
    assert found["engine"]["ratio"] > 0
