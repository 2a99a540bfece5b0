"""The commands that train and judge, one after the other as an operator uses them, on small numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.service.command_line import sparring

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

SMALL = """
[training]
steps = 1
scenarios_per_step = 3
group_size = 3
threads = 1

[pipelines]
evaluation_scenarios = 20
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder in which one round was trained."""
    folder = tmp_path_factory.mktemp("operator")
    (folder / "sparring.toml").write_text(SMALL)
    trained = sparring(folder, "train", "--json")
    result = json.loads(trained.stdout)
    assert result["version"] == 2
    promoted = any(verdict["promoted"] for verdict in result["verdicts"].values())
    assert trained.returncode == (0 if promoted else 1), trained.stderr
    return folder


def champion(folder: Path, role: str) -> int:
    listed = sparring(folder, "adapters", "--json")
    assert listed.returncode == 0, listed.stderr
    (found,) = [v for v in json.loads(listed.stdout) if v["role"] == role and "champion" in v["aliases"]]
    return int(found["version"])


def test_a_version_is_evaluated_with_intervals_by_opponent(folder: Path) -> None:
    line = "evaluate --role agent --version 2 --scenarios 4 --json --output examined"
    result = sparring(folder, *line.split())
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["name"] == "agent@2"
    assert report["conversations"] == 4 * len(report["by_opponent"])
    success = report["overall"]["success"]
    assert 0 <= success["low"] <= success["mean"] <= success["high"] <= 1
    suite = report["suite"]
    assert suite["averaged_over"] == ["held_out"]
    assert "counterpart@2" in suite["training_partners"]
    assert {of["policy"] for of in suite["policies"].values()} == {"agent@2", "base", "accept-everything"}
    assert "agent@2 as counterpart" in suite["chairs"]
    assert suite["policies"]["judged"]["groups"]["adversary"]["overall"]["demand_met"] is not None
    assert json.loads((folder / "examined" / "report.json").read_text()) == suite
    assert (folder / "examined" / "success.png").stat().st_size > 10_000


def test_an_unknown_version_is_misuse(folder: Path) -> None:
    result = sparring(folder, "evaluate", "--version", "99")
    assert result.returncode == 2
    assert "agent@99 is not in the registry" in result.stderr


def test_an_endpoint_that_does_not_answer_is_misuse(folder: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    result = sparring(folder, "evaluate", "--endpoint", url, "--endpoint-model", "some-model")
    assert result.returncode == 2
    assert f"error: --endpoint: no connection to {url}" in result.stderr


def test_gate_promote_and_rollback_agree_and_move_the_champion(folder: Path) -> None:
    before = champion(folder, "counterpart")
    if before == 1:
        gated = sparring(folder, "gate", "--role", "counterpart", "--json")
        decision = json.loads(gated.stdout)["decision"]
        assert gated.returncode == (0 if decision["promote"] else 1), gated.stderr
        promoted = sparring(folder, "promote", "--role", "counterpart")
        assert promoted.returncode == gated.returncode, promoted.stderr
        assert champion(folder, "counterpart") == (2 if decision["promote"] else 1)
    if champion(folder, "counterpart") == 1:
        nowhere = sparring(folder, "rollback", "--role", "counterpart")
        assert nowhere.returncode == 1
        assert "no earlier champion" in nowhere.stderr
        # By hand an operator may go anywhere, and it is undone in the same way.
        assert sparring(folder, "rollback", "--role", "counterpart", "--to", "2").returncode == 0
    assert champion(folder, "counterpart") == 2
    assert sparring(folder, "rollback", "--role", "counterpart").returncode == 0
    assert champion(folder, "counterpart") == 1


def test_a_second_round_begins_after_the_first(folder: Path) -> None:
    trained = sparring(folder, "train", "--json")
    assert json.loads(trained.stdout)["version"] == 3


def test_the_champion_is_not_judged_against_itself(folder: Path) -> None:
    result = sparring(folder, "gate", "--role", "agent", "--version", str(champion(folder, "agent")))
    assert result.returncode == 1
    assert "is champion already" in result.stderr
