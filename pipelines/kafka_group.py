"""One consumer group's view of the conversations topic: poll, commit, lag.

Offsets are committed to Kafka by the caller's word only. A poll starts at the group's committed offsets, so records
that were handed out and not committed come again; so do those of a partition that a rebalance took away before its
commit. Consumers recognise them by event id.

Left out on purpose: reading ahead while the caller works. kafka-python's consumer is single-threaded, so one lock
guards every call of it, and a caller that is away for longer than ``max.poll.interval.ms`` simply joins again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.structs import OffsetAndMetadata

from negotiation.event_log import EventLogUnavailable, Record
from negotiation.events import UnreadableEvent, read_event
from pipelines.config import KafkaSettings
from pipelines.kafka_connection import check_topics, open_consumer, telling
from pipelines.kafka_dead_letters import Buried, Unreadable

log = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
"""Longest wait to be admitted to the group: longer than the brokers need to notice that a member died."""
_POLL_MILLISECONDS = 200
_TAKEN_AWAY = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)


@dataclass
class _HandedOut:
    """Of one partition: records from ``start`` up to before ``end``, not committed; ``last`` is the last readable."""

    start: int
    end: int
    last: int | None = None


class _Rebalances(ConsumerRebalanceListener):
    """Knows whether the group has admitted us, and forgets what was handed out of partitions that are lost."""

    def __init__(self, handed_out: dict[TopicPartition, _HandedOut]) -> None:
        self._handed_out = handed_out
        self.admitted = False
        self.generation = 0

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.admitted = False
        for partition in revoked:
            self._handed_out.pop(partition, None)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self.on_partitions_revoked(lost)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.admitted = True
        self.generation += 1


class GroupReader:
    """``bury`` is handed the unreadable records of a poll and returns once they are durable elsewhere.

    ``buried`` has those that were set aside, also such as can be read: they are passed over. What is committed leaves
    it.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        group: str,
        bury: Callable[[list[Unreadable]], None],
        buried: Buried,
    ) -> None:
        self._settings, self._topic, self._group = settings, topic, group
        self._bury, self._buried = bury, buried
        self._lock = threading.Lock()
        self._handed_out: dict[TopicPartition, _HandedOut] = {}
        self._rebalances = _Rebalances(self._handed_out)
        self._consumer: KafkaConsumer | None = None
        self._timeout = round(1000 * settings.delivery_timeout_seconds)

    def poll(self, limit: int) -> list[Record]:
        """Up to ``limit`` records. None means that there is nothing new in the partitions that are ours now.

        Raises EventLogUnavailable, also where there is something new and the brokers do not send it.
        """
        with self._lock, telling(self._settings, f"be read by group {self._group!r}"):
            consumer = self._connected()
            self._rewind(consumer)
            records: list[Record] = []
            unreadable: list[Unreadable] = []
            # Also where nothing is expected: it is in here that the group is joined and kept up.
            self._take(consumer, 0, limit, records, unreadable)
            self._fill(consumer, limit, records, unreadable)
            if unreadable:
                self._bury(unreadable)
            self._pass_over(consumer)
            return records

    def commit(self, handled: Mapping[int, int]) -> None:
        """Never moves backwards. Raises ValueError for an offset that the topic has not reached yet.

        A partition that is not ours any more is logged and left out.
        """
        with self._lock, telling(self._settings, f"commit the offsets of group {self._group!r}"):
            consumer = self._connected()
            assigned = consumer.assignment()
            offsets: dict[TopicPartition, int] = {}
            for number, offset in handled.items():
                partition = TopicPartition(self._topic, number)
                if partition not in assigned:
                    log.warning(
                        "group %r lost partition %d before offset %d was committed: its records come again",
                        self._group,
                        number,
                        offset,
                    )
                    continue
                following = self._following(consumer, partition, offset)
                if following is not None:
                    offsets[partition] = following
            self._commit(consumer, offsets)

    def lag(self) -> int:
        """Records of all partitions that the group has not committed, whoever of the group reads them."""
        with self._lock, telling(self._settings, f"tell the lag of group {self._group!r}"):
            consumer = self._connected()
            numbers = consumer.partitions_for_topic(self._topic) or set()
            partitions = [TopicPartition(self._topic, number) for number in numbers]
            ends = consumer.end_offsets(partitions, timeout_ms=self._timeout)
            starts = consumer.beginning_offsets(partitions, timeout_ms=self._timeout)
            lag = 0
            for partition in partitions:
                committed = consumer.committed(partition, timeout_ms=self._timeout)
                lag += max(0, ends[partition] - max(committed or 0, starts[partition]))
            return lag

    def close(self) -> None:
        """Leave the group, so that others get its partitions at once."""
        with self._lock:
            consumer, self._consumer = self._consumer, None
            if consumer is None:
                return
            try:
                consumer.close(autocommit=False, timeout_ms=self._timeout)
            except KafkaError as error:
                log.warning("group %r could not be left (%s): it will time out", self._group, type(error).__name__)

    def _connected(self) -> KafkaConsumer:
        if self._consumer is None:
            check_topics(self._settings, [self._topic])
            self._consumer = open_consumer(self._settings, self._group)
            self._consumer.subscribe([self._topic], listener=self._rebalances)
        return self._consumer

    def _rewind(self, consumer: KafkaConsumer) -> None:
        assigned = consumer.assignment()
        for partition, handed_out in self._handed_out.items():
            if partition in assigned:
                consumer.seek(partition, handed_out.start)
        self._handed_out.clear()

    def _fill(self, consumer: KafkaConsumer, limit: int, records: list[Record], unreadable: list[Unreadable]) -> None:
        """Go on until there are enough, or everything is read that was there when it began."""
        admitted_by = time.monotonic() + JOIN_SECONDS
        generation, quiet_until = -1, 0.0
        ends: dict[TopicPartition, int] = {}
        while len(records) < limit:
            if not self._rebalances.admitted:
                if time.monotonic() > admitted_by:
                    raise EventLogUnavailable(
                        f"group {self._group!r} at {self._settings.bootstrap_servers} did not admit this consumer "
                        f"within {JOIN_SECONDS:g} s: another member is busy, stop it or wait for it"
                    )
            elif generation != self._rebalances.generation:
                generation = self._rebalances.generation
                assigned = list(consumer.assignment())
                ends = consumer.end_offsets(assigned, timeout_ms=self._timeout) if assigned else {}
                quiet_until = time.monotonic() + self._settings.delivery_timeout_seconds
                continue
            elif not self._behind(consumer, ends):
                return
            elif time.monotonic() > quiet_until:
                if records:
                    return
                # To return nothing would say that everything was read.
                raise EventLogUnavailable(
                    f"Kafka at {self._settings.bootstrap_servers} has records of {self._topic} that group "
                    f"{self._group!r} has not read, and sent none within "
                    f"{self._settings.delivery_timeout_seconds:g} s: look after the brokers, or raise "
                    "delivery_timeout_seconds of [pipelines.kafka]"
                )
            if self._take(consumer, _POLL_MILLISECONDS, limit - len(records), records, unreadable):
                quiet_until = time.monotonic() + self._settings.delivery_timeout_seconds
            if len(unreadable) >= limit:
                self._bury(unreadable)
                unreadable.clear()

    def _behind(self, consumer: KafkaConsumer, ends: Mapping[TopicPartition, int]) -> bool:
        for partition, end in ends.items():
            position = consumer.position(partition, timeout_ms=self._timeout)
            if position is None or position < end:
                return True
        return False

    def _take(
        self, consumer: KafkaConsumer, wait: int, limit: int, records: list[Record], unreadable: list[Unreadable]
    ) -> bool:
        found: dict[TopicPartition, list[Any]] = consumer.poll(timeout_ms=wait, max_records=limit)
        for partition, fetched in found.items():
            for raw in fetched:
                handed_out = self._handed_out.setdefault(partition, _HandedOut(raw.offset, raw.offset))
                handed_out.end = raw.offset + 1
                if (raw.partition, raw.offset) in self._buried:
                    continue
                try:
                    records.append(Record(raw.offset, read_event(raw.value or b""), raw.partition))
                except UnreadableEvent as error:
                    unreadable.append(Unreadable(raw.partition, raw.offset, raw.key, raw.value or b"", str(error)))
                else:
                    handed_out.last = raw.offset
        return bool(found)

    def _pass_over(self, consumer: KafkaConsumer) -> None:
        """Partitions that gave only unreadable records: nobody will commit those."""
        only = {partition: out.end for partition, out in self._handed_out.items() if out.last is None}
        self._commit(consumer, only)

    def _following(self, consumer: KafkaConsumer, partition: TopicPartition, offset: int) -> int | None:
        """What to commit so that everything up to ``offset`` counts as handled; None where it does already."""
        handed_out = self._handed_out.get(partition)
        if handed_out is not None and offset < handed_out.end:
            if offset < handed_out.start:
                return None
            # What follows the last readable record was set aside.
            return handed_out.end if handed_out.last is None or offset >= handed_out.last else offset + 1
        end = consumer.end_offsets([partition], timeout_ms=self._timeout)[partition]
        if offset >= end:
            raise ValueError(
                f"group {self._group!r} commits offset {offset} of partition {partition.partition}, but it ends "
                f"at {end - 1}"
            )
        committed = consumer.committed(partition, timeout_ms=self._timeout) or 0
        return offset + 1 if offset + 1 > committed else None

    def _commit(self, consumer: KafkaConsumer, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return
        try:
            consumer.commit(
                {partition: OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()},
                timeout_ms=self._timeout,
            )
        except _TAKEN_AWAY as error:
            log.warning(
                "group %r rebalanced before partitions %s were committed: their records come again (%s)",
                self._group,
                sorted(partition.partition for partition in offsets),
                type(error).__name__,
            )
            return
        for partition, offset in offsets.items():
            self._buried.forget_before(partition.partition, offset)
            handed_out = self._handed_out.pop(partition, None)
            if handed_out is not None and offset < handed_out.end:
                self._handed_out[partition] = _HandedOut(offset, handed_out.end, handed_out.last)
            elif handed_out is None or offset > handed_out.end:
                consumer.seek(partition, offset)
