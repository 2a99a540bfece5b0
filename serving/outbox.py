"""Puts events in the log, durably, before anyone is answered. Callers that wait together share one append."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from negotiation.event_log import EventSink
from negotiation.events import ConversationEvent

MAX_BATCH = 512


class OutboxClosed(RuntimeError):
    """The service is shutting down: no event is taken any more."""


class Outbox:
    """Group commit in front of a blocking sink. Start it on the event loop that uses it."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._waiting: list[tuple[Sequence[ConversationEvent], asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="outbox")

    async def append(self, events: Sequence[ConversationEvent]) -> None:
        """Return once the events are in the log. Raises what the sink raised, if it did."""
        if self._closed:
            raise OutboxClosed("the service is shutting down")
        if not events:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((events, done))
        self._wake.set()
        await done

    async def close(self) -> None:
        """Write what is waiting, then stop."""
        self._closed = True
        self._wake.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while self._waiting or not self._closed:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                error = await self._append([event for group, _ in batch for event in group])
                for group, done in batch:
                    # One caller's bad event must not fail the others: tell them apart by writing one by one.
                    own = error if error is None or len(batch) == 1 else await self._append(group)
                    if done.done():
                        continue
                    if own is None:
                        done.set_result(None)
                    else:
                        done.set_exception(own)

    async def _append(self, events: Sequence[ConversationEvent]) -> Exception | None:
        try:
            await asyncio.to_thread(self._sink.append, events)
        except Exception as failure:  # whatever it was, the request that waits must hear of it
            return failure
        return None
