"""The ``sparring`` command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def sparring(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run in ``folder``, by its settings file and not by the environment's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARRING_")}
    return subprocess.run(
        [sys.executable, "-m", "sparring.cli", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
