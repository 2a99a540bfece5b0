"""Publishes what the outbox holds to the event log, in the background: customers are answered without waiting for it.

The outbox (``serving.outbox``) is a table of the database that conversations are in. This loop reads the oldest
events, hands them to the log, and deletes what the log has acknowledged. A crash between the two publishes them
again: readers know an event by its id.

While the log is away (Kafka is down) the outbox grows, the service goes on answering, and the loop tries again
after a pause that doubles up to a limit. An event that the log refuses for good (it contradicts one that the log
holds) is set aside and counted, so that it never blocks the ones behind it. Of replicas that share a database one
relays at a time.

Left out on purpose: order between conversations. Within one it is the order of its steps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from negotiation.event_log import EventRefused, EventSink
from serving.leases import Leases, LeaseTaken
from serving.metrics import ServiceMetrics
from serving.outbox import Outbox, QueuedEvent

log = logging.getLogger("serving")

BATCH_EVENTS = 512
IDLE_SECONDS = 1.0
"""Longest pause between looks when nobody woke it: other replicas queue without waking this one."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
FLUSH_SECONDS = 5.0
"""How long a service that stops goes on publishing. What is left then is published at the next start."""


class Relay:
    """One per process. :meth:`wake` it whenever something was queued."""

    def __init__(
        self,
        outbox: Outbox,
        sink: EventSink,
        leases: Leases,
        metrics: ServiceMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._outbox = outbox
        self._clock = clock
        self._sink = sink
        self._leases = leases
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._publishing = asyncio.Lock()
        self.backlog = 0
        """Events in the outbox when it was last looked at."""

    def wake(self) -> None:
        """Something was queued."""
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled. A failure is logged and counted, and tried again."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            self._wake.clear()
            try:
                while await self.publish():
                    pause = FIRST_PAUSE_SECONDS
                await self._measure()
            except Exception as error:  # whatever was raised: the events are kept, and it tries again
                self._metrics.relay_failures.inc()
                log.error("events wait in the outbox", extra={"error_type": type(error).__name__, "retry_in": pause})
                await self._measure_if_possible()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                continue
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def publish(self) -> int:
        """Publish the oldest batch; returns how many events left the outbox. Raises what the log raised."""
        async with self._publishing:
            try:
                async with self._leases.hold(["outbox relay"]):
                    return await self._publish()
            except LeaseTaken:
                return 0

    async def flush(self) -> None:
        """Publish all that is queued now. Raises what the log raised."""
        while await self.publish():
            pass

    async def close(self) -> None:
        """Publish what is left, for a while."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self.flush()
        except Exception as error:  # stopping must not fail on it: the events are kept
            log.warning("events stay in the outbox", extra={"error_type": type(error).__name__})

    async def _publish(self) -> int:
        batch = await self._outbox.oldest(BATCH_EVENTS)
        if not batch:
            return 0
        try:
            await asyncio.to_thread(self._sink.append, [queued.event for queued in batch])
        except EventRefused as refusal:
            return await self._set_aside(batch, refusal)
        await self._outbox.published([queued.position for queued in batch])
        self._metrics.relayed.inc(len(batch))
        return len(batch)

    async def _set_aside(self, batch: list[QueuedEvent], refusal: EventRefused) -> int:
        refused = [queued.position for queued in batch if queued.event.event_id == refusal.event_id]
        if not refused:
            raise refusal
        await self._outbox.refuse(refused)
        self._metrics.refused_events.inc()
        log.error("the event log refused an event", extra={"event_id": refusal.event_id, "why": str(refusal)})
        return len(refused)

    async def _measure(self) -> None:
        count, oldest = await self._outbox.backlog()
        self.backlog = count
        self._metrics.outbox_events.set(count)
        self._metrics.outbox_seconds.set(0.0 if oldest is None else max(0.0, self._clock() - oldest))

    async def _measure_if_possible(self) -> None:
        try:
            await self._measure()
        except Exception as error:  # the database itself may be what failed
            log.warning("the outbox can not be read", extra={"error_type": type(error).__name__})
