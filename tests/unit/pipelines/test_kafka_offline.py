"""What the log on Kafka does before any broker is asked: refusals, errors, dead letters as records, topics."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.errors import (
    GroupAuthorizationFailedError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
)
from pydantic import SecretStr

from negotiation.event_log import DeadLetter, EventLogUnavailable, EventRefused
from negotiation.events import CONVERSATIONS_TOPIC, ConversationEvent, Message
from negotiation.roles import Role
from pipelines.config import KafkaSettings
from pipelines.kafka_connection import MAX_RECORD_BYTES, administration, open_consumer, open_producer, telling
from pipelines.kafka_dead_letters import MAX_LETTER_BYTES, outgoing, read_letter
from pipelines.kafka_log import KafkaEventLog
from pipelines.kafka_publisher import Outgoing
from pipelines.kafka_topics import Topic, differences, wanted_topics

# Nobody listens on the discard port; whoever connects is refused.
SETTINGS = KafkaSettings(bootstrap_servers="127.0.0.1:9", delivery_timeout_seconds=1)


@dataclass
class Raw:
    """A record as kafka-python reads it."""

    value: bytes
    headers: list[tuple[str, bytes | None]]


def event(text: str) -> ConversationEvent:
    payload = Message(role=Role.COUNTERPART, text=text, shown="")
    return ConversationEvent(tenant="t", conversation_id="c", sequence=4, payload=payload)


def test_opening_and_closing_need_no_broker() -> None:
    log = KafkaEventLog(SETTINGS)
    log.append([])
    log.commit("g", {})
    log.close()
    with pytest.raises(EventLogUnavailable, match=r"127\.0\.0\.1:9 was closed"):
        log.append([event("hello")])


def test_an_event_that_kafka_never_takes_is_refused_before_any_is_sent() -> None:
    words = "secret " * (MAX_RECORD_BYTES // 7)
    huge = event(words)
    with pytest.raises(
        EventRefused, match=r"event 4 \(message\) of conversation c has .* over the 1,000,000"
    ) as caught:
        KafkaEventLog(SETTINGS).append([event("hello"), huge])
    assert caught.value.event_id == huge.event_id
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "connect",
    [
        lambda kafka: open_producer(kafka),
        lambda settings: open_consumer(settings, "g"),
        lambda settings: administration(settings).__enter__(),
    ],
    ids=["producer", "consumer", "administration"],
)
def test_failed_connections_leave_no_thread_and_no_socket_behind(
    connect: Callable[[KafkaSettings], object], caplog: pytest.LogCaptureFixture
) -> None:
    # Captured records would keep errors, and those their sockets.
    caplog.set_level(logging.CRITICAL, "kafka")
    # Less than a setting may be, so that ten tries take no time.
    hasty = SETTINGS.model_copy(update={"delivery_timeout_seconds": 0.02})

    def held() -> tuple[int, int]:
        # Refused sockets are held by their errors' tracebacks, in cycles.
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = held()
    for _ in range(10):
        with pytest.raises(EventLogUnavailable):
            connect(hasty)
    assert held() == before


class SilentConsumer:
    """Stands for kafka-python's where a broker tells how far a partition goes, and sends nothing of it."""

    def __init__(self, end: int) -> None:
        self.end = end

    def subscribe(self, topics: list[str], listener: ConsumerRebalanceListener) -> None:
        listener.on_partitions_assigned(self.assignment())

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(CONVERSATIONS_TOPIC, 0)}

    def end_offsets(self, partitions: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end)

    def position(self, partition: TopicPartition, timeout_ms: int) -> int:
        return 0

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Raw]]:
        return {}


def test_a_silent_broker_is_not_taken_for_the_end_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = SilentConsumer(end=0)
    monkeypatch.setattr("pipelines.kafka_group.check_topics", lambda *_: None)
    monkeypatch.setattr("pipelines.kafka_group.open_consumer", lambda *_: consumer)
    log = KafkaEventLog(SETTINGS.model_copy(update={"delivery_timeout_seconds": 0.01}))
    assert log.poll("g", 5) == []
    consumer.end = 1
    with pytest.raises(EventLogUnavailable, match=r"has records of .* that group 'g' has not read, and sent none"):
        log.poll("g", 5)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_under_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit is {limit}"):
        KafkaEventLog(SETTINGS).poll("g", limit)


def test_errors_of_kafka_name_brokers_limit_and_remedy() -> None:
    with pytest.raises(EventLogUnavailable) as caught, telling(SETTINGS, "be reached"):
        raise KafkaTimeoutError("Unable to bootstrap")
    text = str(caught.value)
    assert text.startswith("Kafka at 127.0.0.1:9 could not be reached within 1 s (KafkaTimeoutError: ")
    assert "start the brokers" in text
    with pytest.raises(EventLogUnavailable, match="check the ssl_ files"), telling(SETTINGS, "be reached"):
        raise PermissionError("key.pem")
    no_login = pytest.raises(EventLogUnavailable, match=r"without a login .*: grant what docs/streaming\.md lists")
    with no_login, telling(SETTINGS, "be read by group 'g'"):
        raise GroupAuthorizationFailedError
    login = SETTINGS.model_copy(
        update={"sasl_username": "me", "sasl_mechanism": "PLAIN", "sasl_password": SecretStr("open sesame")}
    )
    with pytest.raises(EventLogUnavailable) as caught, telling(login, "be reached"):
        raise SaslAuthenticationFailedError("Invalid username or password")
    assert "did not let in user 'me' by PLAIN (SaslAuthenticationFailedError): correct sasl_username" in str(
        caught.value
    )
    with pytest.raises(EventLogUnavailable, match="as user 'me' "), telling(login, "take 3 records"):
        raise TopicAuthorizationFailedError
    with pytest.raises(ZeroDivisionError), telling(SETTINGS, "be reached"):
        raise ZeroDivisionError


@given(
    reason=st.text(),
    partition=st.integers(0, 1000),
    offset=st.integers(0, 2**62),
    body=st.binary(),
    at=st.datetimes(timezones=st.just(UTC)),
)
def test_a_dead_letter_is_read_as_it_was_written(
    reason: str, partition: int, offset: int, body: bytes, at: datetime
) -> None:
    letter = DeadLetter(reason, CONVERSATIONS_TOPIC, partition, offset, at, body)
    sent = outgoing(letter)
    assert sent.key == f"{CONVERSATIONS_TOPIC}/{partition}/{offset}".encode()
    assert sent.value is not None
    assert read_letter(Raw(sent.value, list(sent.headers))) == letter


@settings(max_examples=25)
@given(reason=st.text(max_size=300), over=st.integers(-400, 2_000_000), offset=st.integers(0, 2**62))
def test_a_dead_letter_and_its_headers_never_exceed_the_limit_and_a_cut_one_says_so(
    reason: str, over: int, offset: int
) -> None:
    body = b"x" * (MAX_LETTER_BYTES + over)
    sent = outgoing(DeadLetter(reason, CONVERSATIONS_TOPIC, 1, offset, datetime.now(UTC), body))
    assert sent.value is not None
    assert len(sent.value) + sum(len(name) + len(value) for name, value in sent.headers) <= MAX_LETTER_BYTES
    letter = read_letter(Raw(sent.value, list(sent.headers)))
    assert letter is not None
    assert letter.cut_from == (None if sent.value == body else len(body))
    # Set aside again after being read back, as by a copy between clusters, it is still the same.
    assert read_letter(Raw(*_raw(outgoing(letter)))) == letter


def _raw(sent: Outgoing) -> tuple[bytes, list[tuple[str, bytes | None]]]:
    assert sent.value is not None
    return sent.value, list(sent.headers)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("reason", b"x")],
        [(name, b"x") for name in ("reason", "source_topic", "source_partition", "source_offset", "recorded_at")],
        [("reason", None)],
    ],
)
def test_what_somebody_else_wrote_is_no_dead_letter(headers: list[tuple[str, bytes | None]]) -> None:
    assert read_letter(Raw(b"body", headers)) is None


def test_topics_are_partitioned_kept_and_compacted_as_configured() -> None:
    kafka = KafkaSettings(bootstrap_servers="a:1", partitions=12, replication_factor=3, retention_days=0.5)
    conversations, dead, adapters = wanted_topics(kafka)
    expected = {"cleanup.policy": "delete", "retention.ms": "43200000", "min.insync.replicas": "2"}
    assert (conversations.partitions, conversations.replication_factor, dict(conversations.config)) == (
        12,
        3,
        expected,
    )
    assert (dead.partitions, dict(dead.config)) == (1, expected)
    assert dict(adapters.config) == {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    single = wanted_topics(kafka.model_copy(update={"replication_factor": 1}))
    assert not [topic for topic in single if "min.insync.replicas" in topic.config]


def test_differences_are_those_of_what_we_set() -> None:
    wanted = Topic("t", 3, 2, {"retention.ms": "5", "cleanup.policy": "delete"})
    assert differences(wanted, Topic("t", 3, 2, {**wanted.config, "compression.type": "zstd"})) == []
    found = differences(wanted, Topic("t", 4, 2, {"retention.ms": "6"}))
    assert [str(each) for each in found] == [
        "t: partitions is 4, configured is 3",
        "t: retention.ms is 6, configured is 5",
        "t: cleanup.policy is not set, configured is delete",
    ]
