"""``sparring evaluate``: its options, its errors, and what it prints and writes of an examination."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from negotiation.roles import Role
from sparring import judge
from sparring.cli import app
from sparring.evaluation_tables import as_markdown, sections, shown
from training.evaluation import Episode, Estimate, EvaluationResult
from training.evaluation_report import SuiteReport, mismatch, paired_figures, policy_figures
from training.joint_rollout import RolloutFailed

GROUPS = {
    "held_out": ("mirror", "silent"),
    "enterprise": ("enterprise",),
    "adversary": ("injector one", "injector two", "mirror"),
    "training_partner": ("conceder",),
    "frozen_warm_start": ("base",),
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli() -> CliRunner:
    return CliRunner()


def results(policy: str, share: int) -> dict[str, EvaluationResult]:
    """``share`` in four conversations succeed."""

    def row(seed: int, name: str, group: str) -> Episode:
        won = seed % 4 < share
        family, met = ("injector", won) if name.startswith("injector") else (name, None)
        reward = 0.9 * won
        return Episode(
            seed, name, family, won, won, reward, 0.1, 20_000.0 * won, 0.0, won or None, 6, 30, 0, "agreed", met
        )

    return {
        group: EvaluationResult(
            policy, Role.AGENT, "telesales", tuple(row(seed, name, group) for seed in range(8) for name in names)
        )
        for group, names in GROUPS.items()
    }


@pytest.fixture
def report() -> SuiteReport:
    played = {
        "judged": results("agent@7", 3),
        "warm_start": results("base", 2),
        "accept_everything": results("accept-everything", 1),
    }
    return SuiteReport(
        schema_version=1,
        scenario="telesales",
        role=Role.AGENT,
        adapter="agent@7",
        counterpart_adapter=None,
        training_partners=("conceder",),
        seeds=tuple(range(8)),
        confidence=0.95,
        averaged_over=("held_out",),
        absent_splits=(),
        policies={name: policy_figures(of, ["held_out"]) for name, of in played.items()},
        chairs={"agent@7 as agent": policy_figures({"held_out": played["judged"]["held_out"]}, ["held_out"])},
        mismatches={name: mismatch(of["training_partner"], of["held_out"]) for name, of in played.items()},
        mismatch_by_partner={"conceder": None},
        gains={
            group: paired_figures(result, played["warm_start"][group]) for group, result in played["judged"].items()
        },
    )


@pytest.fixture
def asked(report: SuiteReport, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the examination was asked for, which itself is replaced by the report."""
    received: dict[str, Any] = {}

    def evaluated(settings: Any, role: Role, version: int | None, **options: Any) -> judge.EvaluationReport:
        received.update(options, role=role, version=version, scenarios=settings.pipelines.evaluation_scenarios)
        options["progress"](1, 2)
        return judge._report(report)

    monkeypatch.setattr(judge, "evaluate_version", evaluated)
    return received


def test_options_reach_the_examination(cli: CliRunner, asked: dict[str, Any]) -> None:
    line = "evaluate --role counterpart --version 3 --scenarios 9 --against train --against validation"
    result = cli.invoke(app, [*line.split(), "--counterpart-version", "2"])
    assert result.exit_code == 0, result.output
    assert (asked["role"], asked["version"], asked["scenarios"]) == (Role.COUNTERPART, 3, 9)
    assert (asked["splits"], asked["counterpart_version"]) == (["train", "validation"], 2)


def test_json_keeps_its_keys_and_adds_the_examination(cli: CliRunner, asked: dict[str, Any]) -> None:
    result = cli.invoke(app, ["evaluate", "--json"])
    plain = json.loads(result.stdout, parse_constant=pytest.fail)
    assert list(plain) == ["name", "scenario", "conversations", "scenarios", "overall", "by_opponent", "suite"]
    assert (plain["name"], plain["conversations"], plain["scenarios"]) == ("agent@7", 6 * 8, 8)
    assert plain["overall"]["success"]["mean"] == pytest.approx(0.75)
    # Two splits have somebody of one name; partners and models are in the suite only.
    assert list(plain["by_opponent"]) == [
        "mirror",
        "silent",
        "enterprise",
        "injector one",
        "injector two",
        "mirror (adversary)",
    ]
    assert plain["suite"]["schema_version"] == 1
    assert asked["splits"] is None


def test_output_holds_the_report_the_tables_and_the_plots(
    cli: CliRunner, asked: dict[str, Any], report: SuiteReport, tmp_path: Path
) -> None:
    result = cli.invoke(app, ["evaluate", "--output", "new/out"])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "new" / "out"
    names = {"report.json", "table.md", "success.png", "success.svg", "agreement.png", "agreement.svg"}
    assert {path.name for path in folder.iterdir()} == names
    assert SuiteReport.from_json((folder / "report.json").read_text()) == report
    assert (folder / "table.md").read_text() == as_markdown(report)


def test_tables_show_baselines_beside_and_adversaries_apart(
    cli: CliRunner, asked: dict[str, Any], report: SuiteReport
) -> None:
    shown_tables = cli.invoke(app, ["evaluate"]).stdout
    assert max(map(len, shown_tables.splitlines())) <= 80
    first, by_counterpart, adversaries, mismatches, _ = sections(report)
    assert first.title == "Average over held-out counterparts"
    assert first.header == ("per conversation", "agent@7", "warm start", "accept everything")
    assert first.rows[0][0] == "Success@1, %"
    assert [cell.split()[0] for cell in first.rows[0][1:]] == ["75.0", "50.0", "25.0"]
    assert [row[0] for row in by_counterpart.rows][:5] == [
        "HELD-OUT",
        "  mirror",
        "  silent",
        "ENTERPRISE",
        "  enterprise",
    ]
    assert [row[0] for row in adversaries.rows] == ["injector one", "injector two", "mirror", "all injectors"]
    assert mismatches.rows[1] == ("  with conceder alone", "-")
    for section in (first, by_counterpart, adversaries, mismatches):
        assert {len(row) for row in section.rows} == {len(section.header)}


@pytest.mark.parametrize(
    ("estimate", "metric", "text"),
    [
        (Estimate(0.5625, 0.51, 0.613), "success", "56.2 [51, 61]"),
        (Estimate(-0.1, -0.2, 0.0), "own_reward", "-0.10 [-0.20, 0.00]"),
        (Estimate(8416.0, 7000.0, 9833.0), "own_points", "8.42k [7.00, 9.83]"),
        (None, "success", "-"),
    ],
)
def test_figures_as_text(estimate: Estimate | None, metric: str, text: str) -> None:
    assert shown(estimate, metric) == text


# --- What can not be done -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--against", "heldout"], "--against heldout: no such split, known: warm_start, train"),
        (["--endpoint-model", "m"], "need --endpoint URL"),
        (["--endpoint", "http://127.0.0.1:9/v1"], "needs --endpoint-model NAME"),
        (
            ["--endpoint", "http://127.0.0.1:9/v1", "--endpoint-model", "m", "--endpoint-key-env", "NO_SUCH_KEY"],
            "--endpoint-key-env NO_SUCH_KEY: that variable is not set",
        ),
        (["--output", "taken/out"], "--output taken/out: can not be made a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_misuse_is_said_before_anything_is_played(
    cli: CliRunner, asked: dict[str, Any], tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "taken").write_text("a file")
    result = cli.invoke(app, ["evaluate", *options])
    assert result.exit_code == 2
    assert message in result.stderr
    assert not asked


class EndpointUnreachable(RuntimeError):
    pass


class FakeEndpoint:
    """In place of the client, whose import alone takes seconds. ``made`` has everyone of a test."""

    made: ClassVar[list[FakeEndpoint]] = []
    answers = True

    def __init__(self, role: Role, url: str, model: str, api_key: str | None = None) -> None:
        self.asked, self.closed = (role, url, model, api_key), False
        self.made.append(self)

    def check(self) -> None:
        if not self.answers:
            raise EndpointUnreachable(f"no connection to {self.asked[1]}: start the server there, or correct the URL")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch) -> list[FakeEndpoint]:
    module = SimpleNamespace(EndpointNegotiator=FakeEndpoint, EndpointUnreachable=EndpointUnreachable)
    monkeypatch.setitem(sys.modules, "training.counterparts.endpoint", module)  # type: ignore[arg-type]
    monkeypatch.setattr(FakeEndpoint, "made", [])
    return FakeEndpoint.made


ENDPOINT = ["--endpoint", "http://host/v1", "--endpoint-model", "some-model"]


def test_an_endpoint_is_checked_given_its_key_and_closed(
    cli: CliRunner, asked: dict[str, Any], endpoints: list[FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    result = cli.invoke(app, ["evaluate", *ENDPOINT, "--endpoint-key-env", "SOME_KEY", "--json"])
    assert result.exit_code == 0, result.output
    (endpoint,) = endpoints
    assert endpoint.asked == (Role.COUNTERPART, "http://host/v1", "some-model", "secret")
    assert asked["endpoints"] == (endpoint,)
    assert endpoint.closed
    assert "secret" not in result.output


def test_an_endpoint_that_does_not_answer_is_named_with_a_remedy(
    cli: CliRunner, asked: dict[str, Any], endpoints: list[FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEndpoint, "answers", False)
    result = cli.invoke(app, ["evaluate", *ENDPOINT])
    assert result.exit_code == 2
    assert "error: --endpoint: no connection to http://host/v1: start the server" in result.stderr
    assert endpoints[0].closed
    assert not asked


def test_a_split_that_has_nobody_for_the_other_chair_is_misuse(cli: CliRunner, tmp_path: Path) -> None:
    result = cli.invoke(app, ["evaluate", "--role", "counterpart", "--against", "adversary"])
    assert result.exit_code == 2
    assert "error: --against adversary: no adversary negotiators for agent" in result.stderr
    assert not (tmp_path / "var").exists()


def test_conversations_that_keep_breaking_are_no_success(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For example an endpoint that stops answering half-way."""

    class Nothing:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: 1

    def broken(*_: Any, **__: Any) -> None:
        raise RolloutFailed("3 of 4 episodes broke 3 times; the log says why")

    monkeypatch.setattr("training.evaluation_suite.run_suite", broken)
    for name in ("resolve_base_model", "open_registry", "open_engine"):
        monkeypatch.setattr(judge, name, lambda *_, **__: Nothing())
    monkeypatch.setattr(judge, "_adapter", lambda registry, role, version: (f"{role}@{version}", tmp_path))
    result = cli.invoke(app, ["evaluate", "--counterpart-version", "1"])
    assert result.exit_code == 1
    assert "no: 3 of 4 episodes broke 3 times" in result.stderr
