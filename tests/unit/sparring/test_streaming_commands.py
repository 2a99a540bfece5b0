"""``sparring dead-letter`` over the embedded log, and ``sparring topics`` where there are none."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from negotiation.events import ConversationEvent, Message
from negotiation.roles import Role
from pipelines.event_log import SqliteEventLog
from pipelines.kafka_log import KafkaEventLog
from sparring.cli import app
from sparring.compose import open_event_log
from sparring.settings import load_settings

INVALID = "record: json_invalid"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    return CliRunner()


@pytest.fixture
def log(cli: CliRunner, tmp_path: Path) -> SqliteEventLog:
    """With two events that are no JSON, and one that its consumer buried."""
    log = SqliteEventLog(tmp_path / "var" / "events.db")
    payload = Message(role=Role.COUNTERPART, text="buried words", shown="buried words")
    log.append([ConversationEvent(tenant="t", conversation_id="c", sequence=0, payload=payload)])
    with sqlite3.connect(log.path) as raw:
        for name in ("x", "y"):
            raw.execute(
                "INSERT INTO events (event_id, fingerprint, body) VALUES (?, x'', ?)", (name, f"{name} words")
            )
    raw.close()
    (record,) = log.poll("dataset", 9)
    log.bury(record, "nonsense")
    return log


def test_they_are_counted_by_reason_and_named_by_id_without_a_word_of_theirs(
    cli: CliRunner, log: SqliteEventLog
) -> None:
    result = cli.invoke(app, ["dead-letter", "list", "--json"])
    assert result.exit_code == 0
    assert [(row["reason"], row["count"], row["first_id"]) for row in json.loads(result.stdout)] == [
        ("nonsense", 1, "0-1"),
        (INVALID, 2, "0-2"),
    ]
    named = cli.invoke(app, ["dead-letter", "list", "--reason", INVALID, "--json"])
    assert [row["id"] for row in json.loads(named.stdout)] == ["0-2", "0-3"]
    tables = [cli.invoke(app, ["dead-letter", "list", *more]).output for more in ([], ["--reason", INVALID])]
    assert "nonsense" in tables[0]
    assert "0-3" in tables[1]
    assert "words" not in "".join([result.output, named.output, *tables])


def test_one_is_shown_with_its_body(cli: CliRunner, log: SqliteEventLog) -> None:
    result = cli.invoke(app, ["dead-letter", "show", "0-2"])
    assert result.exit_code == 0
    assert f"reason: {INVALID}" in result.stdout
    assert result.stdout.endswith("x words\n")
    shown = json.loads(cli.invoke(app, ["dead-letter", "show", "0-1", "--json"]).stdout)
    assert json.loads(shown["body"])["payload"]["text"] == "buried words"


@pytest.mark.parametrize(
    "body", ["\x1b]0;owned\x07\x1b[2J\r\x9b31m", "\u202egnihtemos\u2066", "one\ttwo\nthree", "Grüße, 你好 [bold]x[/]"]
)
def test_what_is_shown_steers_no_terminal_and_json_is_exact(cli: CliRunner, log: SqliteEventLog, body: str) -> None:
    with sqlite3.connect(log.path) as raw:
        raw.execute("UPDATE dead_letters SET body = ?, reason = ? WHERE offset = 2", (body, body))
    raw.close()
    shown = cli.invoke(app, ["dead-letter", "show", "0-2"]).stdout
    assert all(each.isprintable() or each in "\n\t" for each in shown)
    listed = cli.invoke(app, ["dead-letter", "list"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    assert all(each.isprintable() or each == "\n" for each in listed.stdout)
    if body.isprintable():
        assert shown.endswith(f"{body}\n")
        assert body in listed.stdout
    as_json = json.loads(cli.invoke(app, ["dead-letter", "show", "0-2", "--json"]).stdout)
    assert (as_json["body"], as_json["reason"], as_json["cut_from_bytes"]) == (body, body, None)


@pytest.mark.parametrize("command", ["show", "retry"])
def test_an_unknown_id_is_answered_no(cli: CliRunner, log: SqliteEventLog, command: str) -> None:
    result = cli.invoke(app, ["dead-letter", command, "0-99"])
    assert result.exit_code == 1
    assert "no: no dead letter 0-99 in var/events.db: `sparring dead-letter list` shows" in result.output


def test_one_that_can_be_read_is_appended_and_not_listed_any_more(cli: CliRunner, log: SqliteEventLog) -> None:
    result = cli.invoke(app, ["dead-letter", "retry", "0-1", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"retried": 1, "refused": {}}
    assert log.dead_letters() == {INVALID: 2}
    assert [record.offset for record in log.poll("dataset", 9)] == [4]


def test_those_that_still_can_not_be_read_stay(cli: CliRunner, log: SqliteEventLog) -> None:
    result = cli.invoke(app, ["dead-letter", "retry", "--reason", INVALID])
    assert result.exit_code == 1
    assert "no: 2 still can not be taken and stay where they are, the first 0-2" in result.output
    assert log.dead_letters()[INVALID] == 2
    assert "words" not in result.output


@pytest.mark.parametrize("options", [[], ["0-1", "--reason", INVALID]])
def test_a_retry_names_one_or_a_reason(cli: CliRunner, log: SqliteEventLog, options: list[str]) -> None:
    result = cli.invoke(app, ["dead-letter", "retry", *options])
    assert result.exit_code == 2
    assert "one dead letter by its id, or all of a reason" in result.output


def test_without_dead_letters_that_is_said(cli: CliRunner) -> None:
    listed = cli.invoke(app, ["dead-letter", "list"])
    assert (listed.exit_code, listed.output) == (0, "no dead letter in var/events.db\n")
    retried = cli.invoke(app, ["dead-letter", "retry", "--reason", INVALID])
    assert retried.exit_code == 1
    assert f"no: no dead letter of reason '{INVALID}'" in retried.output


def test_a_file_has_no_topics(cli: CliRunner) -> None:
    result = cli.invoke(app, ["topics", "apply"])
    assert result.exit_code == 2
    assert "var/events.db, which has no topics: to keep them in Kafka set bootstrap_servers of" in result.output


def test_the_settings_choose_the_log_and_opening_it_needs_no_broker(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded = open_event_log(load_settings())
    assert isinstance(embedded, SqliteEventLog)
    embedded.close()
    monkeypatch.setenv("SPARRING_PIPELINES__KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:9")
    kafka = open_event_log(load_settings())
    assert isinstance(kafka, KafkaEventLog)
    kafka.close()


@pytest.mark.parametrize("command", [["worker", "--once"], ["replay", "dialogues.txt"], ["dead-letter", "list"]])
def test_a_damaged_event_log_is_named_with_the_remedy(cli: CliRunner, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "dialogues.txt").write_text("")
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "events.db").write_bytes(b"garbage " * 1000)
    result = cli.invoke(app, command)
    assert result.exit_code == 2
    assert (
        "error: var/events.db can not be used as the event log (file is not a database): restore it" in result.output
    )
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", [["worker", "--once"], ["topics", "apply"]])
def test_a_wrong_address_of_kafka_is_named_with_the_remedy(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("SPARRING_PIPELINES__KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:9")
    monkeypatch.setenv("SPARRING_PIPELINES__KAFKA__DELIVERY_TIMEOUT_SECONDS", "1")
    result = cli.invoke(app, command)
    assert result.exit_code == 2
    assert "error: Kafka at 127.0.0.1:9 could not be reached within 1 s" in result.output
    assert "correct [pipelines.kafka]" in result.output
    assert "Traceback" not in result.output
