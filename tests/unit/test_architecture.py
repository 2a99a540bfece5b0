"""The house stands as drawn: floors, lint and types are part of the tests, so that no one has to remember them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["-m", "ruff", "check", "."], id="ruff"),
        pytest.param(["-m", "mypy"], id="mypy"),
        pytest.param(["-c", "from importlinter.cli import lint_imports_command as lint; lint()"], id="floors"),
    ],
)
def test_house_rules_hold(command: list[str]) -> None:
    result = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
