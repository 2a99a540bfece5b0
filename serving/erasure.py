"""Erasing a conversation's text: what the service keeps of it, and a tombstone in the event log for who keeps more.

The order makes it survive a crash anywhere:

1. the store drops its answers and the events that were not published yet, and marks it erased: from here on it is
   not found by anybody;
2. the tombstone is queued in the outbox (its sequence number comes from the checkpoint);
3. the checkpoints are deleted;
4. the store notes that nothing is left.

What was marked and not finished is finished at the next start, by the next upkeep, or by asking again. Left to the
readers of the event log: their own copies. Left to time: attention states in the engine's memory, which have no text.
"""

from __future__ import annotations

import logging

from negotiation.events import ConversationEvent, Erased
from serving.checkpoints import ConversationCheckpoints
from serving.metrics import ServiceMetrics
from serving.relay import Relay
from serving.store import ConversationStore

log = logging.getLogger("serving")


class Erasure:
    """The steps; the caller holds the conversation's lease."""

    def __init__(
        self,
        store: ConversationStore,
        checkpoints: ConversationCheckpoints,
        relay: Relay,
        metrics: ServiceMetrics,
    ) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._relay = relay
        self._metrics = metrics

    async def erase(self, conversation_id: str) -> None:
        """All four steps. Raises what the database raises; after the first the text can not be read any more."""
        await self._store.erase(conversation_id)
        await self.finish(conversation_id)

    async def finish(self, conversation_id: str) -> None:
        """From the second step on; doing it twice is harmless."""
        record = await self._checkpoints.read(conversation_id)
        if record is not None:
            tombstone = ConversationEvent(
                tenant=record.tenant, conversation_id=record.id, sequence=record.sequence, payload=Erased()
            )
            await self._store.queue([tombstone])
            self._relay.wake()
            await self._checkpoints.erase(conversation_id)
            self._metrics.erased.inc()
            log.info("erased", extra={"conversation_id": conversation_id, "sequence": record.sequence})
        await self._store.erasure_done(conversation_id)
