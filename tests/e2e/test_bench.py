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
