"""Sends records to Kafka and returns once all of them are acknowledged. Connects on first use.

After a failure the producer is thrown away and the next call makes a new one: an idempotent producer that lost track
of its sequence numbers never recovers by itself. What the old one still held may or may not arrive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kafka import KafkaProducer
from kafka.errors import KafkaError

from negotiation.event_log import EventLogUnavailable
from pipelines.config import KafkaSettings
from pipelines.kafka_connection import check_topics, open_producer, telling


@dataclass(frozen=True)
class Outgoing:
    """A record to be sent. A value of None is a tombstone."""

    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


class Publisher:
    """Safe to call from many threads; they share one producer."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._producer: KafkaProducer | None = None
        self._checked: set[str] = set()
        self._closed = False

    def send(self, topic: str, records: Sequence[Outgoing]) -> None:
        """All acknowledged on return, in order within a partition.

        Raises EventLogUnavailable; some of the records may be there then.
        """
        if not records:
            return
        producer = self._connected(topic)
        deadline = time.monotonic() + self._settings.delivery_timeout_seconds
        try:
            with telling(self._settings, f"take {len(records)} records for {topic}"):
                pending = [
                    producer.send(
                        topic,
                        key=record.key,
                        value=record.value,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                for sent in pending:
                    sent.get(timeout=max(0.0, deadline - time.monotonic()))
        except EventLogUnavailable:
            self._discard(producer)
            raise

    def close(self) -> None:
        """Whoever is sending gets an error."""
        with self._lock:
            self._closed = True
            producer, self._producer = self._producer, None
        if producer is not None:
            _end(producer)

    def _connected(self, topic: str) -> KafkaProducer:
        with self._lock:
            if self._closed:
                raise EventLogUnavailable(f"the log on Kafka at {self._settings.bootstrap_servers} was closed")
            if topic not in self._checked:
                # Brokers may create what they do not know, with one partition and nobody's retention.
                check_topics(self._settings, [topic])
                self._checked.add(topic)
            if self._producer is None:
                self._producer = open_producer(self._settings)
            return self._producer

    def _discard(self, producer: KafkaProducer) -> None:
        with self._lock:
            self._checked.clear()
            if self._producer is producer:
                self._producer = None
        _end(producer)


def _end(producer: KafkaProducer) -> None:
    # A plain close() gives up, and closes nothing, while records wait for brokers that are away.
    producer._sender.force_close()
    producer._sender.join(5)
    try:
        producer.close(timeout=0)
    except KafkaError:
        # Records that were never acknowledged: whoever sent them has been told.
        producer._closed = True
