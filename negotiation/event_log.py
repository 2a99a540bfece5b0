"""The seam to the event log: an append-only record of conversation events, read with committed offsets.

The embedded implementation (SQLite file) is in ``pipelines.event_log``; Kafka stands behind the same calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from negotiation.events import ConversationEvent


@dataclass(frozen=True)
class Record:
    """An event at its offset in the log. Offsets grow, and need not be consecutive."""

    offset: int
    event: ConversationEvent


class EventSink(Protocol):
    """Where serving writes. ``append`` returns once the events are durable; an event id already present is
    kept once and is no error, so a retry is always safe."""

    def append(self, events: Sequence[ConversationEvent]) -> None: ...


class EventLog(EventSink, Protocol):
    """A sink that can be read back by named consumer groups."""

    def poll(self, group: str, limit: int) -> list[Record]:
        """Up to ``limit`` records after the group's committed offset, in order. Does not commit."""
        ...

    def commit(self, group: str, offset: int) -> None:
        """Everything up to and including ``offset`` has been durably handled by the group."""
        ...

    def lag(self, group: str) -> int:
        """Records the group has not committed yet."""
        ...

    def close(self) -> None: ...
