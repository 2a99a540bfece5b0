"""The whole loop, twice, as a newcomer runs it: ``sparring demo --once`` with small numbers."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SMALL = """
[training]
steps = 2
scenarios_per_step = 4
group_size = 4
threads = 1

[pipelines]
evaluation_scenarios = 20
"""


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARRING_")}
    return subprocess.Popen(
        [sys.executable, "-m", "sparring.cli", "demo", "--customers", "16", "--at-once", "8", *options],
        cwd=folder,
        env={**environment, "COLUMNS": "100", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell starts what it runs in the background with Ctrl-C ignored, and so would be the one that is tested.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen[str], folder: Path, already: str = "") -> str:
    """All that it printed. It must end well."""
    output = already + process.communicate()[0]
    logs = "".join(log.read_text()[-3000:] for log in (folder / "var" / "logs").glob("*.log"))
    assert process.returncode == 0, output + logs
    return output


def run_until_it_stays(folder: Path) -> str:
    """Without --once: look at what it says is up, then press Ctrl-C."""
    process = start(folder)
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "stays up until Ctrl-C" in line:
            break
    for url in re.findall(r"(?:API docs|MLflow)\s+(http://\S+)", "".join(lines)):
        assert httpx.get(url, trust_env=False).status_code == 200
    process.send_signal(signal.SIGINT)
    return finish(process, folder, "".join(lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    (folder / "sparring.toml").write_text(SMALL)
    return folder


@pytest.fixture(scope="module")
def outputs(folder: Path) -> list[str]:
    """What two runs in one folder print; the second goes on from the first, and stays up until Ctrl-C."""
    return [finish(start(folder, "--once"), folder), run_until_it_stays(folder)]


def test_it_ends_with_the_table_and_no_failed_request(outputs: list[str]) -> None:
    for output in outputs:
        for role in ("agent", "counterpart"):
            assert re.search(rf"{role} success % +\S+ \[", output)
            assert re.search(rf"{role} reward +\S+ \[", output)
            assert re.search(rf"{role}@\d+ (not )?promoted", output)
        assert re.search(r"now serving\s+agent@\d+", output)
        served = re.search(r"([\d,]+) requests served, (\d+) failed", " ".join(output.split()))
        assert served is not None
        assert int(served[1].replace(",", "")) > 0
        assert served[2] == "0"
        assert "/docs" in output


def test_a_second_run_goes_on_where_the_first_ended(outputs: list[str]) -> None:
    rounds = [int(found[1]) for output in outputs if (found := re.search(r"Round (\d+):", output))]
    assert len(rounds) == 2
    assert rounds[1] > rounds[0]


def test_every_event_is_in_the_log_once_and_every_call_has_its_outcome(outputs: list[str], folder: Path) -> None:
    with sqlite3.connect(folder / "var" / "events.db") as database:
        bodies = [json.loads(body) for (body,) in database.execute("SELECT body FROM events")]
    by_conversation: dict[str, list[dict[str, object]]] = {}
    for body in bodies:
        by_conversation.setdefault(body["conversation_id"], []).append(body)
    assert len(by_conversation) >= 32
    for events in by_conversation.values():
        assert sorted(event["sequence"] for event in events) == list(range(len(events)))  # type: ignore[type-var]
        assert [event["payload"]["type"] for event in events].count("outcome") == 1  # type: ignore[index]


def test_nothing_is_left_running(outputs: list[str], folder: Path) -> None:
    assert not (folder / "var" / "demo-processes.json").exists()
    for process in psutil.process_iter(["cwd"]):
        if process.pid != os.getpid():
            assert process.info["cwd"] != str(folder)


def test_the_adapters_are_registered_and_can_be_listed(outputs: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "sparring.cli", "adapters", "--json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    versions = json.loads(result.stdout)
    champions = [version for version in versions if "champion" in version["aliases"]]
    assert {version["role"] for version in champions} == {"agent", "counterpart"}
    assert all(version["state"] == "ready" for version in champions)
