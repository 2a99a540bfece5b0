"""The seam to the event log: an append-only record of conversation events, read with committed offsets.

The embedded implementation (SQLite file) is in ``pipelines.event_log``; Kafka stands behind the same calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from negotiation.events import ConversationEvent


@dataclass(frozen=True)
class Record:
    """An event at its offset in a partition. Offsets grow within a partition, and need not be consecutive.

    All events of a conversation are in one partition. The embedded log has only partition 0.
    """

    offset: int
    event: ConversationEvent
    partition: int = 0


def positions(records: Iterable[Record]) -> dict[int, int]:
    """The last offset of each partition among ``records``: what to commit once all of them were handled."""
    last: dict[int, int] = {}
    for record in records:
        last[record.partition] = max(record.offset, last.get(record.partition, record.offset))
    return last


class EventRefused(RuntimeError):
    """The log will never take this event; the others of the same call were not written either.

    The message holds none of the event's words.
    """

    def __init__(self, event_id: str, message: str) -> None:
        super().__init__(message)
        self.event_id = event_id


class EventSink(Protocol):
    """Where serving writes. ``append`` returns once the events are durable; an event id already present is
    kept once and is no error, so a retry is always safe. Raises EventRefused for one that it will never take, and
    anything else for a failure that may pass."""

    def append(self, events: Sequence[ConversationEvent]) -> None: ...


class EventLog(EventSink, Protocol):
    """A sink that can be read back by named consumer groups."""

    def poll(self, group: str, limit: int) -> list[Record]:
        """Up to ``limit`` records after the group's committed offsets, in order within a partition. Does not commit.

        A record that can not be read becomes a dead letter and is passed over.
        """
        ...

    def commit(self, group: str, handled: Mapping[int, int]) -> None:
        """Everything up to and including these offsets, by partition, has been durably handled by the group."""
        ...

    def bury(self, record: Record, reason: str) -> None:
        """Set aside, as a dead letter, a record that can be read and yet makes no sense to its consumer.

        Durable on return; the same record twice is one dead letter. ``reason`` holds none of the event's words.
        """
        ...

    def lag(self, group: str) -> int:
        """Records the group has not committed yet."""
        ...

    def close(self) -> None: ...
