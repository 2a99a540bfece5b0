"""The command line: what it prints, and how it exits. 0 it worked, 1 the answer is no, 2 it was misused."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from sparring.cli import app

# Two sides of one dialogue, in the format of the corpus; written for this test.
CORPUS = (
    "1 4 4 1 1 2 YOU: the book for me , the rest for you <eos> THEM: fine <eos> YOU: <selection> "
    "item0=1 item1=0 item2=0 <eos> reward=4 agree 1 10 4 0 1 0\n"
    "1 10 4 0 1 0 THEM: the book for me , the rest for you <eos> YOU: fine <eos> YOU: <selection> "
    "item0=0 item1=4 item2=1 <eos> reward=0 agree 1 4 4 1 1 2\n"
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli() -> CliRunner:
    return CliRunner()


def command_lines() -> list[list[str]]:
    found: list[list[str]] = []

    def walk(command: object, path: list[str]) -> None:
        children = getattr(command, "commands", None)
        if children is None:
            found.append(path)
            return
        for name, child in children.items():
            walk(child, [*path, name])

    walk(get_command(app), [])
    return found


@pytest.mark.parametrize("path", command_lines(), ids=" ".join)
def test_every_command_explains_itself_with_an_example(cli: CliRunner, path: list[str]) -> None:
    result = cli.invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Example: sparring " + " ".join(path) in " ".join(result.output.split())


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom sparring.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'torch', 'mlflow', 'transformers', 'pyarrow', 'fastapi', 'langgraph'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_version(cli: CliRunner) -> None:
    assert cli.invoke(app, ["--version"]).output.strip() == "0.1.0"


@pytest.mark.parametrize(
    "command", [["serve"], ["worker"], ["adapters"], ["demo"], ["keys", "create", "--tenant", "a"]], ids=" ".join
)
def test_an_unknown_key_in_the_settings_stops_every_command(
    cli: CliRunner, tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "sparring.toml").write_text("[serving]\nprot = 1\n")
    result = cli.invoke(app, command)
    assert result.exit_code == 2
    assert "error: serving.prot: unknown key, did you mean port?" in result.stderr
    assert not (tmp_path / "var").exists()


def test_a_port_in_use_is_said_at_once(cli: CliRunner) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = cli.invoke(app, ["serve", "--port", str(port)])
    assert result.exit_code == 2
    assert f"can not listen on 127.0.0.1:{port}" in result.stderr
    assert "choose another port" in result.stderr


def test_a_malformed_corpus_line_is_named_and_nothing_is_published(cli: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(CORPUS + "1 4 4 one 1 2 YOU: hello <eos>\n")
    result = cli.invoke(app, ["replay", "corpus.txt"])
    assert result.exit_code == 2
    assert "error: corpus.txt:3:" in result.stderr
    summary = json.loads(cli.invoke(app, ["dataset", "summary", "--json"]).stdout)
    assert summary["views"] == 0


def test_a_corpus_that_is_not_there(cli: CliRunner) -> None:
    assert cli.invoke(app, ["replay", "absent.txt"]).exit_code == 2


def test_replayed_conversations_are_in_the_dataset_once(cli: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(CORPUS)
    for _ in range(2):
        result = cli.invoke(app, ["replay", "corpus.txt", "--json"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["conversations"] == 2
        summary = json.loads(cli.invoke(app, ["dataset", "summary", "--json"]).stdout)
        assert (summary["views"], summary["deals"], summary["mean_points"]) == (2, 2, 2.0)
    assert "2 views" in cli.invoke(app, ["dataset", "summary", "--source", "replay"]).stdout


def test_a_key_is_shown_once_and_kept_as_a_hash_only(cli: CliRunner, tmp_path: Path) -> None:
    result = cli.invoke(app, ["keys", "create", "--tenant", "acme"])
    assert result.exit_code == 0
    key = result.stdout.strip()
    kept = tmp_path / "var" / "keys.json"
    assert key.startswith("sk-tenant-")
    assert key not in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_keys_are_listed_without_secrets_and_revoked_by_id(cli: CliRunner, tmp_path: Path) -> None:
    limits = ["--expires-in-days", "2", "--requests-per-minute", "9", "--concurrent-requests", "0"]
    made = cli.invoke(app, ["keys", "create", "--tenant", "acme", "--json", *limits])
    key = json.loads(made.stdout)["key"]
    cli.invoke(app, ["keys", "create", "--tenant", "rival", "--admin"])
    listed = json.loads(cli.invoke(app, ["keys", "list", "--json"]).stdout)
    assert [(entry["tenant"], entry["scope"], entry["expired"]) for entry in listed] == [
        ("acme", "tenant", False),
        ("rival", "admin", False),
    ]
    assert (listed[0]["requests_per_minute"], listed[0]["concurrent_requests"]) == (9, 0)
    table = cli.invoke(app, ["keys", "list"]).stdout
    secret = json.loads((tmp_path / "var" / "keys.json").read_text())["keys"][0]["sha256"]
    for shown in (table, json.dumps(listed)):
        assert listed[0]["id"] in shown
        assert key not in shown
        assert secret not in shown
    assert cli.invoke(app, ["keys", "revoke", listed[0]["id"]]).exit_code == 0
    assert [entry["tenant"] for entry in json.loads(cli.invoke(app, ["keys", "list", "--json"]).stdout)] == ["rival"]
    again = cli.invoke(app, ["keys", "revoke", listed[0]["id"]])
    assert again.exit_code == 1
    assert f"no: no key '{listed[0]['id']}'" in again.stderr


def test_a_bad_tenant_is_refused(cli: CliRunner) -> None:
    result = cli.invoke(app, ["keys", "create", "--tenant", "../etc"])
    assert result.exit_code == 2
    assert "'../etc' must be" in result.stderr


def test_a_damaged_base_model_is_refused(cli: CliRunner, tiny_model_dir: Path, tmp_path: Path) -> None:
    import shutil

    model = shutil.copytree(tiny_model_dir, tmp_path / "model")
    (model / "model.sha256").write_text("0" * 64)
    (tmp_path / "sparring.toml").write_text('base_model = "model"\n')
    result = cli.invoke(app, ["adapters"])
    assert result.exit_code == 2
    assert "damaged or replaced" in result.stderr


def test_a_model_is_not_built_over_another(cli: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    result = cli.invoke(app, ["model", "build", "--output", "model"])
    assert result.exit_code == 2
    assert "model is not empty" in result.stderr
