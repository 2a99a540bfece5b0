"""What every event log does alike, tried on the embedded one and on Kafka."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka import KafkaProducer

from negotiation.event_log import EventLog, Record, positions
from negotiation.events import CONVERSATIONS_TOPIC, ConversationEvent, Message, UnreadableEvent
from negotiation.roles import Role
from pipelines.event_log import SqliteEventLog
from pipelines.kafka_log import KafkaEventLog
from pipelines.kafka_topics import apply_topics

pytestmark = [pytest.mark.service, pytest.mark.timeout(120)]


def message(conversation: str, sequence: int, text: str = "hello") -> ConversationEvent:
    payload = Message(role=Role.AGENT, text=text, shown=text)
    return ConversationEvent(tenant="t", conversation_id=conversation, sequence=sequence, payload=payload)


@dataclass
class Place:
    """Where a log is: it can be opened many times, and written to past its own code."""

    open_log: Callable[[], EventLog]
    put_raw: Callable[[bytes], None]
    opened: list[EventLog] = field(default_factory=list)

    def open(self) -> EventLog:
        self.opened.append(self.open_log())
        return self.opened[-1]


@pytest.fixture(params=["sqlite", "kafka"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        path = tmp_path / "events.db"

        def insert(body: bytes) -> None:
            with sqlite3.connect(path) as raw:
                raw.execute(
                    "INSERT INTO events (event_id, fingerprint, body) VALUES (hex(randomblob(8)), x'', ?)",
                    (body,),
                )
            raw.close()

        place = Place(lambda: SqliteEventLog(path), insert)
    else:
        broker = request.getfixturevalue("kafka_broker")
        apply_topics(broker.settings())

        def send(body: bytes) -> None:
            producer = KafkaProducer(bootstrap_servers=broker.address)
            producer.send(CONVERSATIONS_TOPIC, key=b"somebody", value=body).get(10)
            producer.close()

        place = Place(lambda: KafkaEventLog(broker.settings()), send)

    yield place
    for log in place.opened:
        log.close()


def read_all(log: EventLog, group: str, limit: int = 7) -> list[Record]:
    records: list[Record] = []
    while batch := log.poll(group, limit):
        assert len(batch) <= limit
        records += batch
        log.commit(group, positions(batch))
    return records


def newer(event: ConversationEvent) -> bytes:
    """The event as a later release might write it, with a schema version that this one does not know."""
    return json.dumps({**json.loads(event.model_dump_json()), "schema_version": 99}).encode()


def test_all_events_come_once_and_each_conversation_in_order(place: Place) -> None:
    log = place.open()
    names = [f"c{number}" for number in range(9)]
    for start in (0, 5):
        log.append([message(name, start + n) for n in range(5) for name in names])
    assert log.lag("g") == 90
    records = read_all(log, "g")
    assert len({(record.partition, record.offset) for record in records}) == len(records) == 90
    for name in names:
        own = [record for record in records if record.event.conversation_id == name]
        assert [record.event.sequence for record in own] == list(range(10))
        assert len({record.partition for record in own}) == 1
        assert [record.offset for record in own] == sorted(record.offset for record in own)
    assert log.lag("g") == 0
    assert log.lag("another") == 90


def test_what_was_not_committed_comes_again_and_after_reopening_too(place: Place) -> None:
    log = place.open()
    log.append([message("a", n) for n in range(6)])
    first = log.poll("g", 4)
    assert log.poll("g", 4) == first
    log.commit("g", positions(first[:2]))
    assert [record.event.sequence for record in log.poll("g", 9)] == [2, 3, 4, 5]
    log.close()
    again = place.open()
    assert [record.event.sequence for record in again.poll("g", 9)] == [2, 3, 4, 5]
    assert again.lag("g") == 4


def test_a_commit_never_moves_back_nor_past_the_end(place: Place) -> None:
    log = place.open()
    log.append([message("a", n) for n in range(3)])
    records = log.poll("g", 9)
    log.commit("g", positions(records))
    log.commit("g", positions(records[:1]))
    assert log.lag("g") == 0
    assert log.poll("g", 9) == []
    beyond = {records[-1].partition: records[-1].offset + 1}
    with pytest.raises(ValueError, match=r"commits offset \d+.* ends at \d+"):
        log.commit("g", beyond)


def test_events_that_come_later_are_found_by_the_next_poll(place: Place) -> None:
    log = place.open()
    assert log.poll("g", 5) == []
    log.append([message("a", 0)])
    assert [record.event.sequence for record in read_all(log, "g")] == [0]


def test_poison_goes_to_the_dead_letters_while_the_rest_arrives(place: Place) -> None:
    log = place.open()
    log.append([message("a", 0), message("b", 0)])
    for body in (
        b"not json, and somebody's words",
        b'{"schema_version": 99}',
        b'{"schema_version": 99}',
        b"\xff\x00",
    ):
        place.put_raw(body)
    log.append([message("a", 1), message("b", 1)])
    records = read_all(log, "g", 2)
    assert sorted((record.event.conversation_id, record.event.sequence) for record in records) == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
    ]
    assert sorted(log.dead_letters().values()) == [2, 2]
    assert "somebody" not in " ".join(log.dead_letters())
    assert log.lag("g") == 0
    # A second group meets them too, and they are the same dead letters.
    assert len(read_all(place.open(), "another")) == 4
    letters = list(log.each_dead_letter())
    assert len({letter.id for letter in letters}) == len(letters) == 4
    assert {b"not json, and somebody's words", b"\xff\x00"} < {letter.body for letter in letters}
    assert "somebody" not in repr(letters)


def test_a_poll_of_only_unreadable_records_leaves_no_lag_behind(place: Place) -> None:
    log = place.open()
    for number in range(5):
        place.put_raw(b"%d" % number)
    assert log.poll("g", 2) == []
    assert log.lag("g") == 0
    assert sum(log.dead_letters().values()) == 5


def test_what_its_consumer_buries_is_passed_over_and_counted_once(place: Place) -> None:
    log = place.open()
    log.append([message("a", 0), message("a", 1)])
    first = log.poll("g", 9)[0]
    log.bury(first, "nonsense")
    log.bury(first, "nonsense")
    assert [record.event.sequence for record in read_all(log, "g")] == [1]
    assert log.dead_letters() == {"nonsense": 1}


def test_events_of_a_newer_schema_wait_for_a_release_that_reads_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = place.open()
    waiting = message("a", 0)
    place.put_raw(newer(waiting))
    assert read_all(log, "g") == []
    (letter,) = log.each_dead_letter()
    assert letter.reason.startswith("schema_version: newer than")
    with pytest.raises(UnreadableEvent, match="newer"):
        log.retry(letter)
    assert [each.id for each in log.each_dead_letter()] == [letter.id]

    def reads_newer(body: str | bytes) -> ConversationEvent:
        return ConversationEvent.model_validate({**json.loads(body), "schema_version": 2})

    for module in ("pipelines.event_log", "pipelines.kafka_log"):
        monkeypatch.setattr(f"{module}.read_event", reads_newer)
    log.retry(letter)
    assert [record.event.event_id for record in read_all(log, "g")] == [waiting.event_id]
    assert list(place.open().each_dead_letter()) == []
    assert log.dead_letters() == {}


def test_a_limit_under_one_is_refused(place: Place) -> None:
    with pytest.raises(ValueError, match="limit is 0"):
        place.open().poll("g", 0)
