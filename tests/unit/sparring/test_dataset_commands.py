"""The dataset's commands, on a conversation that came through the event log."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.events import Closed, ConversationEvent, Opened, OutcomeReported, Payload
from negotiation.scenario import CloseReason
from pipelines.dataset import DatasetWriter
from pipelines.event_log import SqliteEventLog
from sparring.cli import app


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    log = SqliteEventLog(tmp_path / "var" / "events.db")
    payloads: list[Payload] = [
        Opened(context=DealOrNoDeal().generate(1), adapter="agent@1"),
        Closed(reason=CloseReason.ABANDONED),
        OutcomeReported(agreed=False),
    ]
    log.append(
        [
            ConversationEvent(tenant="t", conversation_id="c", sequence=n, consent=True, payload=payload)
            for n, payload in enumerate(payloads)
        ]
    )
    DatasetWriter(log, tmp_path / "var" / "datasets" / "conversations").consume()
    return tmp_path


def test_show_verify_and_export_tell_the_same(made: Path) -> None:
    run = CliRunner().invoke
    shown = json.loads(run(app, ["dataset", "show", "--json"]).stdout)
    assert shown["newest"]["conversations"] == 1
    assert shown["newest"]["content_hash"] == shown["versions"][-1]["content_hash"]
    assert shown["versions"][-1]["content_hash"][:16] in run(app, ["dataset", "show"]).stdout
    assert json.loads(run(app, ["dataset", "verify", "--json"]).stdout) == {"conversations": 1, "problems": []}
    for name in ("all.jsonl", "all.parquet"):
        assert run(app, ["dataset", "export", name]).exit_code == 0
    row = json.loads((made / "all.jsonl").read_text())
    assert row["conversation_id"] == parquet.read_table(made / "all.parquet")["conversation_id"].to_pylist()[0] == "c"
    assert run(app, ["dataset", "export", "none.jsonl", "--scenario", "telesales"]).exit_code == 0
    assert not (made / "none.jsonl").exists()


def test_a_part_that_is_gone_is_named(made: Path) -> None:
    next(made.glob("var/datasets/conversations/parts/*/*.parquet")).unlink()
    verified = CliRunner().invoke(app, ["dataset", "verify"])
    assert verified.exit_code == 1
    assert "part-00000001.parquet is gone, and 1 conversations with it" in verified.stdout
