"""The outbox: durable before it returns, one append for those who wait together, failures told apart."""

from __future__ import annotations

import asyncio
import threading

import pytest

from negotiation.events import Closed, ConversationEvent
from negotiation.scenario import CloseReason
from serving.outbox import Outbox, OutboxClosed


def event(conversation: str) -> ConversationEvent:
    return ConversationEvent(
        tenant="t", conversation_id=conversation, sequence=0, payload=Closed(reason=CloseReason.ABANDONED)
    )


class Sink:
    """Blocks its first append until ``go`` is set; refuses conversations named bad."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Event()

    def append(self, events) -> None:
        self.go.wait(10)
        names = [event.conversation_id for event in events]
        if "bad" in names:
            raise OSError("refused")
        self.batches.append(names)


async def test_those_who_wait_together_share_an_append():
    sink = Sink()
    outbox = Outbox(sink)
    outbox.start()
    waiting = [asyncio.create_task(outbox.append([event(f"c{number}")])) for number in range(20)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    sink.go.set()
    await asyncio.gather(*waiting)
    assert sorted(name for batch in sink.batches for name in batch) == sorted(f"c{number}" for number in range(20))
    assert len(sink.batches) <= 2
    await outbox.close()


async def test_one_bad_event_fails_its_own_caller_only():
    sink = Sink()
    outbox = Outbox(sink)
    outbox.start()
    waiting = [asyncio.create_task(outbox.append([event(name)])) for name in ("a", "bad", "b")]
    await asyncio.sleep(0.05)
    sink.go.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), OSError, type(None)]
    await outbox.close()


async def test_closing_writes_what_waits_and_takes_no_more():
    sink = Sink()
    outbox = Outbox(sink)
    outbox.start()
    waiting = asyncio.create_task(outbox.append([event("a")]))
    await asyncio.sleep(0)
    sink.go.set()
    await outbox.close()
    await waiting
    assert sink.batches == [["a"]]
    with pytest.raises(OutboxClosed):
        await outbox.append([event("b")])
