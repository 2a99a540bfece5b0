"""The log on Kafka where it differs from the embedded one: brokers that die, shared groups, topics, a whole run."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from negotiation.event_log import EventLogUnavailable, Record, positions
from negotiation.events import CONVERSATIONS_TOPIC, DEAD_LETTER_TOPIC, ConversationEvent, Message, UnreadableEvent
from negotiation.roles import Role
from pipelines.config import KafkaSettings
from pipelines.kafka_connection import TopicMissing
from pipelines.kafka_log import KafkaEventLog
from pipelines.kafka_topics import apply_topics
from tests.service.command_line import sparring

pytestmark = [pytest.mark.service, pytest.mark.timeout(180)]

# Two sides of one dialogue, in the format of the corpus; written for this test.
CORPUS = (
    "1 4 4 1 1 2 YOU: the book for me , the rest for you <eos> THEM: fine <eos> YOU: <selection> "
    "item0=1 item1=0 item2=0 <eos> reward=4 agree 1 10 4 0 1 0\n"
    "1 10 4 0 1 0 THEM: the book for me , the rest for you <eos> YOU: fine <eos> YOU: <selection> "
    "item0=0 item1=4 item2=1 <eos> reward=0 agree 1 4 4 1 1 2\n"
)
DIALOGUES = 30


def message(conversation: str, sequence: int) -> ConversationEvent:
    payload = Message(role=Role.AGENT, text="hello", shown="hello")
    return ConversationEvent(tenant="t", conversation_id=conversation, sequence=sequence, payload=payload)


@pytest.fixture
def settings(kafka_broker: Any) -> KafkaSettings:
    settings: KafkaSettings = kafka_broker.settings()
    apply_topics(settings)
    return settings


@pytest.fixture
def open_log(settings: KafkaSettings) -> Iterator[Callable[[], KafkaEventLog]]:
    opened: list[KafkaEventLog] = []

    def make() -> KafkaEventLog:
        opened.append(KafkaEventLog(settings))
        return opened[-1]

    yield make
    for log in opened:
        log.close()


def identities(records: list[Record]) -> set[str]:
    return {record.event.event_id for record in records}


def read_until(log: KafkaEventLog, wanted: set[str], group: str = "test") -> list[Record]:
    """Poll and commit until all of ``wanted`` was seen."""
    records: list[Record] = []
    deadline = time.monotonic() + 60
    while not wanted <= identities(records):
        assert time.monotonic() < deadline, f"{len(wanted - identities(records))} events never came"
        batch = log.poll(group, 500)
        log.commit(group, positions(batch))
        records += batch
    return records


def test_append_fails_while_the_broker_is_away_and_works_after(
    kafka_broker: Any, open_log: Callable[[], KafkaEventLog]
) -> None:
    log = open_log()
    early, late = [message("a", n) for n in range(3)], [message("a", n) for n in range(3, 6)]
    log.append(early)
    kafka_broker.kill()
    for _ in range(2):
        with pytest.raises(EventLogUnavailable, match=rf"{kafka_broker.address} could not .*: start the brokers"):
            log.append(late)
    with pytest.raises(EventLogUnavailable, match=kafka_broker.address):
        open_log().poll("g", 5)
    kafka_broker.start()
    log.append(late)
    wanted = identities([Record(0, event) for event in early + late])
    first_seen = list(dict.fromkeys(record.event.sequence for record in read_until(log, wanted)))
    assert first_seen == list(range(6)), "in order, repeats aside"


def test_a_reader_outlives_the_broker(kafka_broker: Any, open_log: Callable[[], KafkaEventLog]) -> None:
    log = open_log()
    log.append([message("a", 0)])
    assert len(log.poll("g", 5)) == 1
    kafka_broker.kill()
    with pytest.raises(EventLogUnavailable, match=kafka_broker.address):
        log.lag("g")
    kafka_broker.start()
    log.append([message("a", 1)])
    read_until(log, {message("a", n).event_id for n in range(2)}, "g")


def test_closing_does_not_wait_for_a_broker_that_is_gone(kafka_broker: Any, settings: KafkaSettings) -> None:
    patient = KafkaEventLog(settings.model_copy(update={"delivery_timeout_seconds": 600.0}))
    patient.append([message("a", 0)])
    kafka_broker.kill()
    failed: list[Exception] = []

    def append() -> None:
        try:
            patient.append([message("a", 1)])
        except EventLogUnavailable as error:
            failed.append(error)

    appending = threading.Thread(target=append)
    appending.start()
    patient.close()
    appending.join(60)
    assert not appending.is_alive()
    assert failed


def test_two_consumers_share_a_group_and_every_record_comes(open_log: Callable[[], KafkaEventLog]) -> None:
    writer = open_log()
    sent: set[str] = set()
    seen: list[set[str]] = [set(), set()]
    stop = threading.Event()
    errors: list[BaseException] = []

    def consume(number: int, log: KafkaEventLog) -> None:
        try:
            while not stop.is_set():
                stop.wait(0.05)
                try:
                    records = log.poll("shared", 20)
                    log.commit("shared", positions(records))
                except EventLogUnavailable:
                    # The broker was slow, and says so: a worker asks again too.
                    continue
                seen[number] |= identities(records)
        except BaseException as error:
            errors.append(error)

    def send(sequence: int) -> None:
        events = [message(f"c{number}", sequence) for number in range(30)]
        writer.append(events)
        sent.update(event.event_id for event in events)

    def send_until(done: Callable[[], bool], sequence: int) -> int:
        while not done():
            assert not errors, errors[0]
            with suppress(EventLogUnavailable):
                send(sequence)
                sequence += 1
            time.sleep(0.1)
        return sequence

    logs = [open_log(), open_log()]
    threads = [threading.Thread(target=consume, args=(number, log)) for number, log in enumerate(logs)]
    threads[0].start()
    sequence = send_until(lambda: bool(seen[0]), 0)
    threads[1].start()
    sequence = send_until(lambda: bool(seen[1]), sequence)
    while not sent <= seen[0] | seen[1]:
        assert not errors, errors[0]
        time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not errors
    # The one that stays gets everything from now on.
    logs[0].close()
    send(sequence)
    read_until(logs[1], {message(f"c{number}", sequence).event_id for number in range(30)}, "shared")


def test_a_commit_for_partitions_taken_away_is_logged_and_the_records_come_again(
    open_log: Callable[[], KafkaEventLog], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = open_log(), open_log()
    events = [message(f"c{number}", 0) for number in range(30)]
    first.append(events)
    held = first.poll("g", 100)
    assert len(positions(held)) == 3, "thirty conversations are in all three partitions"
    others: list[Record] = []
    joining = threading.Thread(target=lambda: others.extend(second.poll("g", 100)))
    joining.start()
    kept = first.poll("g", 100)
    deadline = time.monotonic() + 60
    while joining.is_alive() or len(positions(kept)) == 3:
        assert time.monotonic() < deadline
        kept = first.poll("g", 100)
    with caplog.at_level(logging.WARNING, "pipelines.kafka_group"):
        first.commit("g", positions(held))
    assert "before offset" in caplog.text
    assert set(positions(others)) | set(positions(kept)) == {0, 1, 2}
    assert identities(others) | identities(kept) == {event.event_id for event in events}
    second.commit("g", positions(others))
    assert first.lag("g") == 0


def test_topics_are_made_once_and_grown_on_request(kafka_broker: Any) -> None:
    settings = kafka_broker.settings()
    names = ("sparring.conversations.v1", "sparring.dead-letter.v1", "sparring.adapters.v1")
    planned = apply_topics(settings, dry_run=True)
    assert planned.created == names
    assert apply_topics(settings).created == names
    again = apply_topics(settings)
    assert (again.created, again.grown, again.unchanged, again.differences) == ((), (), names, ())

    changed = kafka_broker.settings(partitions=5, retention_days=2)
    report = apply_topics(changed)
    assert {(each.topic, each.key) for each in report.differences} == {
        (names[0], "partitions"),
        (names[0], "retention.ms"),
        (names[1], "retention.ms"),
    }
    assert apply_topics(changed, grow=True, dry_run=True).grown == names[:1]
    grown = apply_topics(changed, grow=True)
    assert grown.grown == names[:1]
    assert {each.key for each in grown.differences} == {"retention.ms"}
    assert apply_topics(changed, grow=True).grown == ()
    client = KafkaAdminClient(bootstrap_servers=kafka_broker.address)
    (topic,) = client.describe_topics([names[0]])
    client.close()
    assert len(topic["partitions"]) == 5


def test_a_topic_that_is_missing_is_named_and_not_made(kafka_broker: Any) -> None:
    log = KafkaEventLog(kafka_broker.settings())
    with pytest.raises(TopicMissing, match=r"no topic sparring\.conversations\.v1: .*sparring topics apply"):
        log.append([message("a", 0)])
    with pytest.raises(TopicMissing, match=r"sparring\.conversations\.v1"):
        log.poll("g", 1)
    with pytest.raises(TopicMissing, match=r"sparring\.dead-letter\.v1"):
        log.dead_letters()
    log.close()
    client = KafkaAdminClient(bootstrap_servers=kafka_broker.address)
    assert not [name for name in client.list_topics() if name.startswith("sparring")]
    client.close()


def test_a_dead_letter_says_where_it_came_from(kafka_broker: Any, open_log: Callable[[], KafkaEventLog]) -> None:
    log = open_log()
    log.append([message("a", 0)])
    (record,) = log.poll("g", 5)
    log.bury(record, "nonsense")
    consumer = KafkaConsumer(DEAD_LETTER_TOPIC, bootstrap_servers=kafka_broker.address, auto_offset_reset="earliest")
    raw = next(consumer)
    consumer.close()
    headers = {name: value.decode() for name, value in raw.headers}
    assert headers.pop("recorded_at")
    assert headers == {
        "reason": "nonsense",
        "source_topic": "sparring.conversations.v1",
        "source_partition": str(record.partition),
        "source_offset": str(record.offset),
    }
    assert ConversationEvent.model_validate_json(raw.value) == record.event


def test_what_was_set_aside_is_remembered_only_until_it_is_committed(
    kafka_broker: Any, open_log: Callable[[], KafkaEventLog]
) -> None:
    log = open_log()
    producer = KafkaProducer(bootstrap_servers=kafka_broker.address)
    for number in range(20):
        producer.send(CONVERSATIONS_TOPIC, key=b"%d" % number, value=b"no event")
    producer.flush(10)
    producer.close()
    log.append([message(f"c{number}", 0) for number in range(20)])
    records = log.poll("g", 100)
    for record in records[:5]:
        log.bury(record, "nonsense")
    assert len(log._buried) == 25
    while records:
        log.commit("g", positions(records))
        records = log.poll("g", 100)
    assert log.lag("g") == 0
    assert len(log._buried) == 0


def test_an_unreadable_record_at_the_size_limit_is_cut_and_does_not_block_its_partition(
    kafka_broker: Any, open_log: Callable[[], KafkaEventLog]
) -> None:
    size = 1_048_000
    producer = KafkaProducer(bootstrap_servers=kafka_broker.address, max_request_size=2 * size)
    producer.send(CONVERSATIONS_TOPIC, key=b"a", value=b"x" * size).get(10)
    producer.close()
    log = open_log()
    log.append([message("a", 0)])
    read_until(log, {message("a", 0).event_id})
    (letter,) = log.each_dead_letter()
    assert letter.cut_from == size
    assert letter.body == b"x" * len(letter.body)
    assert len(letter.body) > 1_000_000
    with pytest.raises(UnreadableEvent, match=rf"of its 1,048,000 bytes were kept: .* offset {letter.offset} of"):
        log.retry(letter)
    assert [each.id for each in log.each_dead_letter()] == [letter.id]


def configure(folder: Path, address: str) -> None:
    (folder / "sparring.toml").write_text(
        f'[pipelines.kafka]\nbootstrap_servers = "{address}"\n'
        "partitions = 3\nreplication_factor = 1\ndelivery_timeout_seconds = 3\n"
    )


def test_a_corpus_goes_through_kafka_into_the_dataset(kafka_broker: Any, tmp_path: Path) -> None:
    configure(tmp_path, kafka_broker.address)
    (tmp_path / "dialogues.txt").write_text(CORPUS * DIALOGUES)
    (tmp_path / "larger.toml").write_text((tmp_path / "sparring.toml").read_text().replace("= 3\nr", "= 4\nr"))
    missing = sparring(tmp_path, "replay", "dialogues.txt")
    assert missing.returncode == 2, missing.stderr
    assert "has no topic sparring.conversations.v1: create what is missing with" in missing.stderr

    applied = sparring(tmp_path, "topics", "apply", "--json")
    assert applied.returncode == 0, applied.stderr
    assert len(json.loads(applied.stdout)["created"]) == 3
    assert sparring(tmp_path, "topics", "apply").returncode == 0
    differing = sparring(tmp_path, "topics", "apply", "--config", "larger.toml", "--dry-run")
    assert differing.returncode == 1
    assert "sparring.conversations.v1: partitions is 3, configured is 4" in differing.stdout
    assert "no: 1 settings of existing topics are not as configured" in differing.stderr

    # Twice: the log keeps both, the dataset one.
    for _ in range(2):
        replayed = sparring(tmp_path, "replay", "dialogues.txt", "--json")
        assert replayed.returncode == 0, replayed.stderr
    conversations = json.loads(replayed.stdout)["conversations"]
    assert conversations >= DIALOGUES
    worked = sparring(tmp_path, "worker", "--once")
    assert worked.returncode == 0, worked.stderr
    directory = tmp_path / "var" / "datasets" / "conversations"
    tables = [parquet.ParquetFile(part).read(["conversation_id"]) for part in directory.glob("parts/*/*.parquet")]
    identifiers = [identity for table in tables for identity in table["conversation_id"].to_pylist()]
    assert len(identifiers) == len(set(identifiers)) == conversations
    assert not (tmp_path / "var" / "events.db").exists()
    summary = sparring(tmp_path, "dataset", "summary")
    assert summary.returncode == 0, summary.stderr


def test_dead_letters_of_kafka_are_looked_after_from_the_command_line(
    kafka_broker: Any, settings: KafkaSettings, tmp_path: Path
) -> None:
    configure(tmp_path, kafka_broker.address)
    producer = KafkaProducer(bootstrap_servers=kafka_broker.address)
    producer.send(CONVERSATIONS_TOPIC, key=b"x", value=b"somebody's words").get(10)
    producer.close()
    worked = sparring(tmp_path, "worker", "--once")
    assert worked.returncode == 0, worked.stderr
    listed = sparring(tmp_path, "dead-letter", "list", "--json")
    (row,) = json.loads(listed.stdout)
    assert (row["count"], row["reason"]) == (1, "record: json_invalid")
    assert "somebody" not in listed.stdout + worked.stdout + worked.stderr
    shown = sparring(tmp_path, "dead-letter", "show", row["first_id"])
    assert shown.stdout.endswith("somebody's words\n")
    retried = sparring(tmp_path, "dead-letter", "retry", "--reason", row["reason"])
    assert retried.returncode == 1
    assert "no: 1 still can not be taken and stay where they are" in retried.stderr
    assert json.loads(sparring(tmp_path, "dead-letter", "list", "--json").stdout) == [row]


def test_without_its_broker_the_worker_says_what_to_do(kafka_broker: Any, tmp_path: Path) -> None:
    configure(tmp_path, kafka_broker.address)
    kafka_broker.kill()
    result = sparring(tmp_path, "worker")
    assert result.returncode == 2
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: Kafka at {kafka_broker.address} could not be reached within 3 s")
    assert "start the brokers" in last
    assert 'Traceback (most recent call last):\n  File "<frozen runpy>"' not in result.stderr


async def test_customers_are_answered_while_kafka_is_away_and_it_is_told_later(
    kafka_broker: Any, make_shop: Any, settings: KafkaSettings, open_log: Callable[[], KafkaEventLog]
) -> None:
    kafka_broker.kill()
    sink = KafkaEventLog(settings)
    async with make_shop(sink=sink) as shop:
        talk = await shop.open()
        assert (await shop.say(talk["id"], "before it ever was there")).status_code == 200
        await asyncio.to_thread(kafka_broker.start)
        reader = open_log()
        await asyncio.to_thread(read_texts, reader, talk["id"], {"before it ever was there"})

        assert (await shop.say(talk["id"], "while it runs")).status_code == 200
        await asyncio.to_thread(read_texts, reader, talk["id"], {"while it runs"})
        kafka_broker.kill()
        for number in range(3):
            assert (await shop.say(talk["id"], f"while it is away {number}")).status_code == 200
        assert await shop.app.state.service.relay._outbox.oldest(1)
        await asyncio.to_thread(kafka_broker.start)
        texts = {f"while it is away {number}" for number in range(3)}
        await asyncio.to_thread(read_texts, reader, talk["id"], texts)
        events = await asyncio.to_thread(read_texts, open_log(), talk["id"], texts, "from the beginning")
        sequences = list(dict.fromkeys(event.sequence for event in events))
        assert sequences == list(range(len(sequences))), "nothing lost, nothing out of order, repeats aside"
    sink.close()


def read_texts(
    log: KafkaEventLog, conversation: str, texts: set[str], group: str = "reader"
) -> list[ConversationEvent]:
    """The conversation's events until the customer's ``texts`` are all there."""
    events: list[ConversationEvent] = []
    deadline = time.monotonic() + 60
    while not texts <= {event.payload.text for event in events if isinstance(event.payload, Message)}:
        assert time.monotonic() < deadline, f"{texts} did not all come"
        try:
            records = log.poll(group, 100)
            log.commit(group, positions(records))
        except EventLogUnavailable:
            continue
        events += [record.event for record in records if record.event.conversation_id == conversation]
    return events
