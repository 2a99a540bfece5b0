"""The transactional outbox: events of steps that were kept, until the event log has acknowledged them.

A table of the database that conversations are in, so that a step's events are queued in the transaction that ends the
step (``serving.store``). ``serving.relay`` publishes them. What an erased conversation had here is deleted with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from negotiation.events import ConversationEvent

_T = TypeVar("_T")

TABLES = sa.MetaData()
OUTBOX = sa.Table(
    "outbox",
    TABLES,
    sa.Column("position", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("event_id", sa.Text, nullable=False, unique=True),
    sa.Column("conversation_id", sa.Text, nullable=False, index=True),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("queued", sa.Double, nullable=False),
    sa.Column("refused", sa.Integer, nullable=False),
    sqlite_autoincrement=True,
)


@dataclass(frozen=True)
class QueuedEvent:
    """An event in the outbox. Positions grow; within a conversation they are in the order of its events."""

    position: int
    event: ConversationEvent


class Transactions(Protocol):
    """Where the table is."""

    def run(self, work: Callable[[sa.Connection], _T]) -> Awaitable[_T]: ...


class Outbox:
    """What the relay needs of the table."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    async def oldest(self, limit: int) -> list[QueuedEvent]:
        """The events that have waited longest, those that the log refused left out."""
        query = sa.select(OUTBOX.c.position, OUTBOX.c.body).where(OUTBOX.c.refused == 0)
        found = await self._database.run(lambda db: db.execute(query.order_by(OUTBOX.c.position).limit(limit)).all())
        return [QueuedEvent(position, ConversationEvent.model_validate_json(body)) for position, body in found]

    async def published(self, positions: Sequence[int]) -> None:
        """The log has acknowledged these: they leave the outbox."""
        await self._database.run(lambda db: db.execute(OUTBOX.delete().where(OUTBOX.c.position.in_(positions))))

    async def refuse(self, positions: Sequence[int]) -> None:
        """The log will never take these: they stay, and are not tried again."""
        change = OUTBOX.update().where(OUTBOX.c.position.in_(positions)).values(refused=1)
        await self._database.run(lambda db: db.execute(change))

    async def backlog(self) -> tuple[int, float | None]:
        """How many events wait, and since when the oldest does (seconds since the epoch)."""
        query = sa.select(sa.func.count(), sa.func.min(OUTBOX.c.queued)).where(OUTBOX.c.refused == 0)
        count, oldest = await self._database.run(lambda db: db.execute(query).one())
        return int(count), oldest


def put(db: sa.Connection, insert: Any, events: Sequence[ConversationEvent], now: float) -> None:
    """Queue events within a transaction; one that is there already is kept once. ``insert``: the dialect's own."""
    if not events:
        return
    rows = [
        {
            "event_id": event.event_id,
            "conversation_id": event.conversation_id,
            "body": event.model_dump_json(),
            "queued": now,
            "refused": 0,
        }
        for event in events
    ]
    db.execute(insert(OUTBOX).on_conflict_do_nothing(index_elements=["event_id"]), rows)
