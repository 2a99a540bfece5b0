"""The seam to the event log: an append-only record of conversation events, read with committed offsets.

The embedded implementation (SQLite file) is in ``pipelines.event_log``, that on Kafka in ``pipelines.kafka_log``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
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


class EventLogUnavailable(RuntimeError):
    """The log can not be reached, or not used as it stands. What was asked for may be asked for again.

    The message names where the log is and the remedy.
    """


@dataclass(frozen=True)
class DeadLetter:
    """A record that was set aside. ``id`` is the same however often the record is set aside.

    ``reason`` holds none of the record's words, ``body`` all of them, unless the record was too large to be kept:
    ``cut_from`` says then how many bytes it had, of which ``body`` is the beginning. ``recorded_at`` is UTC.
    """

    reason: str
    topic: str
    partition: int
    offset: int
    recorded_at: datetime
    body: bytes = field(repr=False)
    cut_from: int | None = None

    @property
    def id(self) -> str:
        """What the command line calls it."""
        return f"{self.partition}-{self.offset}"


class EventSink(Protocol):
    """Where serving writes. ``append`` returns once the events are durable; an event id already present is
    kept once and is no error, so a retry is always safe. Raises EventRefused for one that it will never take, and
    anything else for a failure that may pass."""

    def append(self, events: Sequence[ConversationEvent]) -> None: ...


class DeadLetters(Protocol):
    """Records set aside because nobody could make sense of them, until they are tried again."""

    def dead_letters(self) -> dict[str, int]:
        """How many there are, by reason."""
        ...

    def each_dead_letter(self) -> Iterator[DeadLetter]:
        """All of them, each once, in the order of their offsets within a partition."""
        ...

    def retry(self, letter: DeadLetter) -> None:
        """Append the event again, as this release reads it, and then forget the dead letter.

        Its consumers meet it at a new offset. Raises UnreadableEvent if it still can not be read, EventRefused if the
        log will not take it; the dead letter stays then. One that was cut can not be read.
        """
        ...


class EventLog(EventSink, DeadLetters, Protocol):
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
