"""Dead letters in a Kafka topic of their own.

A dead letter is the record's own bytes (of one too large to be kept beside its headers: the beginning), its key the
place that it came from, and headers that say why and when. A record set aside twice (redelivered before its commit)
has the same key and counts once. One that was tried again is followed by a tombstone under its
key: the topic is only ever appended to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kafka import TopicPartition

from negotiation.event_log import DeadLetter, EventLogUnavailable
from negotiation.events import DEAD_LETTER_TOPIC
from pipelines.config import KafkaSettings
from pipelines.kafka_connection import check_topics, open_consumer, telling
from pipelines.kafka_publisher import Outgoing, Publisher

log = logging.getLogger(__name__)

REASON, SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET = "reason", "source_topic", "source_partition", "source_offset"
RECORDED_AT, RETRIED_AT, CUT_FROM = "recorded_at", "retried_at", "cut_from_bytes"
MAX_LETTER_BYTES = 1_024_000
"""Body and headers together: well under the 1,048,588 bytes that brokers accept by default. Records near that limit,
or of a topic with a higher one, would never become dead letters otherwise, and block their partition."""


@dataclass(frozen=True)
class Unreadable:
    """A record that is no event of a known version."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    reason: str


class Buried:
    """Where the records are that were set aside and not committed yet. Safe to use from many threads.

    Another group of the same process that is behind meets such a record again: it may set it aside itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offsets: dict[int, set[int]] = {}

    def add(self, partition: int, offset: int) -> None:
        with self._lock:
            self._offsets.setdefault(partition, set()).add(offset)

    def forget_before(self, partition: int, offset: int) -> None:
        with self._lock:
            self._offsets[partition] = {each for each in self._offsets.get(partition, ()) if each >= offset}

    def __contains__(self, place: tuple[int, int]) -> bool:
        with self._lock:
            return place[1] in self._offsets.get(place[0], ())

    def __len__(self) -> int:
        with self._lock:
            return sum(len(offsets) for offsets in self._offsets.values())


class KafkaDeadLetters:
    """Writes through the log's publisher; reads the whole topic at each call."""

    def __init__(self, settings: KafkaSettings, publisher: Publisher) -> None:
        self._settings = settings
        self._publisher = publisher

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Durable on return. Raises EventLogUnavailable."""
        self._publisher.send(DEAD_LETTER_TOPIC, [outgoing(letter) for letter in letters])

    def forget(self, letter: DeadLetter) -> None:
        """It was tried again: it is not listed any more."""
        self._publisher.send(DEAD_LETTER_TOPIC, [tombstone(letter, datetime.now(UTC))])

    def each(self) -> Iterator[DeadLetter]:
        """Those that there were at the call, each once, by where they came from. Raises EventLogUnavailable."""
        letters: dict[bytes, DeadLetter] = {}
        forgotten: set[bytes] = set()
        for record in self._records():
            if record.value is None:
                forgotten.add(record.key)
                continue
            letter = read_letter(record)
            if letter is None:
                log.warning("%s: the record at offset %d is no dead letter", DEAD_LETTER_TOPIC, record.offset)
                continue
            letters.setdefault(_key(letter), letter)
        kept = [letter for key, letter in letters.items() if key not in forgotten]
        yield from sorted(kept, key=lambda letter: (letter.topic, letter.partition, letter.offset))

    def _records(self) -> Iterator[Any]:
        settings = self._settings
        timeout = round(1000 * settings.delivery_timeout_seconds)
        check_topics(settings, [DEAD_LETTER_TOPIC])
        consumer = open_consumer(settings, None)
        try:
            with telling(settings, f"be read for {DEAD_LETTER_TOPIC}"):
                numbers = consumer.partitions_for_topic(DEAD_LETTER_TOPIC) or set()
                partitions = [TopicPartition(DEAD_LETTER_TOPIC, number) for number in sorted(numbers)]
                consumer.assign(partitions)
                ends = consumer.end_offsets(partitions, timeout_ms=timeout)
                consumer.seek_to_beginning(*partitions)
                deadline = time.monotonic() + settings.delivery_timeout_seconds
                while any(consumer.position(partition, timeout_ms=timeout) < ends[partition] for partition in ends):
                    found = consumer.poll(timeout_ms=200)
                    for fetched in found.values():
                        yield from fetched
                    if found:
                        deadline = time.monotonic() + settings.delivery_timeout_seconds
                    elif time.monotonic() > deadline:
                        raise EventLogUnavailable(
                            f"Kafka at {settings.bootstrap_servers} sent nothing more of {DEAD_LETTER_TOPIC} within "
                            f"{settings.delivery_timeout_seconds:g} s: look after the brokers, then repeat"
                        )
        finally:
            consumer.close(autocommit=False, timeout_ms=timeout)


def outgoing(letter: DeadLetter) -> Outgoing:
    """A dead letter as a record of its topic, its body cut where it would be too large for one."""
    headers = {
        REASON: letter.reason,
        SOURCE_TOPIC: letter.topic,
        SOURCE_PARTITION: str(letter.partition),
        SOURCE_OFFSET: str(letter.offset),
        RECORDED_AT: letter.recorded_at.isoformat(),
    }
    sent = [(name, value.encode()) for name, value in headers.items()]
    room = MAX_LETTER_BYTES - sum(len(name.encode()) + len(value) for name, value in sent)
    if letter.cut_from is not None or len(letter.body) > room:
        size = str(letter.cut_from or len(letter.body)).encode()
        sent.append((CUT_FROM, size))
        room = max(0, room - len(CUT_FROM) - len(size))
    return Outgoing(_key(letter), letter.body[:room], sent)


def tombstone(letter: DeadLetter, retried_at: datetime) -> Outgoing:
    """What follows a dead letter that was tried again, under its key."""
    return Outgoing(_key(letter), None, [(RETRIED_AT, retried_at.isoformat().encode())])


def read_letter(record: Any) -> DeadLetter | None:
    """The dead letter in a record of the topic; None where somebody else wrote it."""
    headers = {name: value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    try:
        partition, offset = int(headers[SOURCE_PARTITION]), int(headers[SOURCE_OFFSET])
        return DeadLetter(
            reason=headers[REASON],
            topic=headers[SOURCE_TOPIC],
            partition=partition,
            offset=offset,
            recorded_at=datetime.fromisoformat(headers[RECORDED_AT]),
            body=record.value,
            cut_from=int(headers[CUT_FROM]) if CUT_FROM in headers else None,
        )
    except (KeyError, ValueError):
        return None


def _key(letter: DeadLetter) -> bytes:
    return f"{letter.topic}/{letter.partition}/{letter.offset}".encode()
