"""The event log on Kafka: for a service and a worker on different machines, and for more than one of each.

The topic's key is the conversation id, so all events of a conversation are in one partition and in order. Opening the
log needs no broker: each part connects when it is first used. Topics are not made here but by ``sparring topics
apply`` (``pipelines.kafka_topics``), and a missing one is an error that names it.

Unlike the embedded log it does not compare an event with an earlier one under the same id. The same event appended
twice is two records; whoever reads them recognises them by event id. So an ``append`` that failed half way is simply
repeated.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from negotiation.event_log import DeadLetter, EventRefused, Record
from negotiation.events import CONVERSATIONS_TOPIC, ConversationEvent, UnreadableEvent, read_event
from pipelines.config import KafkaSettings
from pipelines.kafka_connection import MAX_RECORD_BYTES
from pipelines.kafka_dead_letters import Buried, KafkaDeadLetters, Unreadable
from pipelines.kafka_group import GroupReader
from pipelines.kafka_publisher import Outgoing, Publisher


class KafkaEventLog:
    """``negotiation.event_log.EventLog`` on Kafka. Safe to call from many threads."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._publisher = Publisher(settings)
        self._letters = KafkaDeadLetters(settings, self._publisher)
        self._lock = threading.Lock()
        self._readers: dict[str, GroupReader] = {}
        self._buried = Buried()

    def append(self, events: Sequence[ConversationEvent]) -> None:
        """All acknowledged on return. Raises EventLogUnavailable naming the brokers; some may be written then.

        Raises EventRefused, before anything is sent, for an event of more than MAX_RECORD_BYTES.
        """
        records = []
        for event in events:
            body = event.model_dump_json().encode()
            if len(body) > MAX_RECORD_BYTES:
                raise EventRefused(
                    event.event_id,
                    f"event {event.sequence} ({event.payload.type}) of conversation {event.conversation_id} has "
                    f"{len(body):,} bytes, over the {MAX_RECORD_BYTES:,} that Kafka is sent; nothing of this batch "
                    "was written",
                )
            records.append(Outgoing(event.conversation_id.encode(), body))
        self._publisher.send(CONVERSATIONS_TOPIC, records)

    def poll(self, group: str, limit: int) -> list[Record]:
        """Up to ``limit`` readable records after the group's offsets, of the partitions that this consumer has now.

        Joins the group at the first call. Unreadable records become dead letters. Raises EventLogUnavailable.
        """
        if limit < 1:
            raise ValueError(f"limit is {limit}, must be at least 1")
        return self._reader(group).poll(limit)

    def commit(self, group: str, handled: Mapping[int, int]) -> None:
        """Never moves backwards. A partition that a rebalance took away is logged and left out.

        Raises ValueError for an offset not reached yet, EventLogUnavailable if the brokers do not acknowledge.
        """
        if handled:
            self._reader(group).commit(handled)

    def lag(self, group: str) -> int:
        """Records that the group has not committed, dead letters among them included. Does not join the group."""
        return self._reader(group).lag()

    def bury(self, record: Record, reason: str) -> None:
        """Dead-letter a record that can be read and yet makes no sense to its consumer."""
        body = record.event.model_dump_json().encode()
        self._letters.put([_letter(record.partition, record.offset, body, reason)])
        self._buried.add(record.partition, record.offset)

    def dead_letters(self) -> dict[str, int]:
        """How many records are set aside, by reason."""
        return dict(sorted(Counter(letter.reason for letter in self._letters.each()).items()))

    def each_dead_letter(self) -> Iterator[DeadLetter]:
        """Those that there were at the call, by partition and offset."""
        return self._letters.each()

    def retry(self, letter: DeadLetter) -> None:
        """Append the event, then mark the dead letter as done; a crash in between repeats a harmless append.

        Raises UnreadableEvent for one that was cut.
        """
        if letter.cut_from is not None:
            raise UnreadableEvent(
                f"only the first {len(letter.body):,} of its {letter.cut_from:,} bytes were kept: read the rest at "
                f"offset {letter.offset} of partition {letter.partition} of {letter.topic}, while Kafka keeps that, "
                "and have its writer send it anew"
            )
        self.append([read_event(letter.body)])
        self._letters.forget(letter)

    def close(self) -> None:
        """Leave all groups and disconnect."""
        self._publisher.close()
        with self._lock:
            readers, self._readers = list(self._readers.values()), {}
        for reader in readers:
            reader.close()

    def _reader(self, group: str) -> GroupReader:
        with self._lock:
            reader = self._readers.get(group)
            if reader is None:
                reader = GroupReader(self._settings, CONVERSATIONS_TOPIC, group, self._set_aside, self._buried)
                self._readers[group] = reader
            return reader

    def _set_aside(self, unreadable: list[Unreadable]) -> None:
        self._letters.put([_letter(bad.partition, bad.offset, bad.value, bad.reason) for bad in unreadable])
        for bad in unreadable:
            self._buried.add(bad.partition, bad.offset)


def _letter(partition: int, offset: int, body: bytes, reason: str) -> DeadLetter:
    return DeadLetter(
        reason=reason,
        topic=CONVERSATIONS_TOPIC,
        partition=partition,
        offset=offset,
        recorded_at=datetime.now(UTC),
        body=body,
    )
