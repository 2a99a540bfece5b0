"""Dead letters of the embedded log: listed with where they came from, tried again at the end of the log."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from negotiation.event_log import positions
from negotiation.events import ConversationEvent, Message, UnreadableEvent
from negotiation.roles import Role
from pipelines.event_log import EventConflict, SqliteEventLog


def message(conversation: str, sequence: int, text: str = "hello") -> ConversationEvent:
    payload = Message(role=Role.AGENT, text=text, shown=text)
    return ConversationEvent(tenant="t", conversation_id=conversation, sequence=sequence, payload=payload)


@pytest.fixture
def log(tmp_path: Path) -> SqliteEventLog:
    return SqliteEventLog(tmp_path / "events.db")


def put_newer(log: SqliteEventLog, event: ConversationEvent) -> None:
    """As a later release would have written it: under its own event id, with a schema version unknown here."""
    body = json.dumps({**json.loads(event.model_dump_json()), "schema_version": 99})
    with sqlite3.connect(log.path) as raw:
        raw.execute("INSERT INTO events (event_id, fingerprint, body) VALUES (?, x'01', ?)", (event.event_id, body))
    raw.close()


def read_newer(body: str | bytes) -> ConversationEvent:
    return ConversationEvent.model_validate({**json.loads(body), "schema_version": 2})


def test_a_dead_letter_says_what_why_when_and_from_where(log: SqliteEventLog) -> None:
    log.append([message("a", 0)])
    put_newer(log, message("a", 1))
    log.poll("g", 9)
    (letter,) = log.each_dead_letter()
    assert (letter.id, letter.topic, letter.partition, letter.offset) == ("0-2", "sparring.conversations.v1", 0, 2)
    assert letter.reason.startswith("schema_version: newer")
    assert letter.recorded_at.tzinfo is not None
    assert json.loads(letter.body)["schema_version"] == 99
    assert "hello" not in repr(letter)


def test_what_can_be_read_now_comes_again_at_the_end_though_its_offset_was_committed(
    log: SqliteEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_newer(log, message("a", 0))
    log.append([message("a", 1)])
    log.commit("g", positions(log.poll("g", 9)))
    (letter,) = log.each_dead_letter()
    with pytest.raises(UnreadableEvent, match="newer"):
        log.retry(letter)
    assert log.dead_letters() == {letter.reason: 1}
    monkeypatch.setattr("pipelines.event_log.read_event", read_newer)
    log.retry(letter)
    assert log.dead_letters() == {}
    assert list(log.each_dead_letter()) == []
    (record,) = log.poll("g", 9)
    assert (record.offset, record.event.event_id) == (3, message("a", 0).event_id)
    # Tried a second time, by somebody with an old list, it is the same event and kept once.
    log.retry(letter)
    assert len(log.poll("g", 9)) == 1


def test_one_that_contradicts_the_log_stays_where_it_is(log: SqliteEventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append([message("a", 0, "something else")])
    with sqlite3.connect(log.path) as raw:
        body = json.dumps({**json.loads(message("a", 0).model_dump_json()), "schema_version": 99})
        raw.execute("INSERT INTO events (event_id, fingerprint, body) VALUES ('x', x'01', ?)", (body,))
    raw.close()
    assert len(log.poll("g", 9)) == 1
    (letter,) = log.each_dead_letter()
    monkeypatch.setattr("pipelines.event_log.read_event", read_newer)
    with pytest.raises(EventConflict):
        log.retry(letter)
    assert [each.id for each in log.each_dead_letter()] == [letter.id]
    assert len(log.poll("g", 9)) == 1


def test_what_a_consumer_buried_is_read_again_after_a_retry(log: SqliteEventLog) -> None:
    log.append([message("a", 0)])
    (record,) = log.poll("g", 9)
    log.bury(record, "nonsense")
    log.commit("g", positions([record]))
    (letter,) = log.each_dead_letter()
    log.retry(letter)
    (again,) = log.poll("g", 9)
    assert again.event == record.event
    assert again.offset > record.offset
