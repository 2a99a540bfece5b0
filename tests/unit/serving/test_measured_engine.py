"""The measuring engine changes nothing that goes through it, and counts each request once however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from negotiation.generation import GenerationChunk, GenerationRequest, GenerationResult
from serving.engines import EngineBusy
from serving.measured_engine import MeasuredEngine
from serving.metrics import ServiceMetrics
from serving.tracing import NO_TRACES

REQUEST = GenerationRequest((1, 2, 3), "agent@1")


class Inside:
    """Streams the chunks it is given, then fails if told to; notes when it was closed."""

    def __init__(self, sizes: list[int], failure: BaseException | None = None) -> None:
        self.sizes, self.failure, self.closed = sizes, failure, False
        self.gate = asyncio.Event()
        self.gate.set()

    async def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        try:
            for place, size in enumerate(self.sizes):
                await self.gate.wait()
                last = place == len(self.sizes) - 1 and self.failure is None
                yield GenerationChunk((7,) * size, (-0.5,) * size, "stop" if last else None)
            if self.failure is not None:
                raise self.failure
        finally:
            self.closed = True

    async def generate_async(self, request: GenerationRequest) -> GenerationResult:
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return GenerationResult((7,) * sum(self.sizes), (-0.5,) * sum(self.sizes), "stop")


def around(inside: Inside) -> tuple[MeasuredEngine, ServiceMetrics]:
    metrics = ServiceMetrics(dict, lambda: {"agent@1"})
    return MeasuredEngine(inside, metrics, lambda: NO_TRACES, server_address="here", content=False), metrics


def reading(metrics: ServiceMetrics) -> dict[str, float]:
    def value(name: str, **labels: str) -> float:
        return metrics.registry.get_sample_value(name, labels) or 0

    failures = [
        sample.value
        for family in metrics.reply_failures.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    ]
    return {
        "queue": value("sparring_queue_depth"),
        "running": value("sparring_replies_in_progress"),
        "first": value("sparring_time_to_first_token_seconds_count", adapter="agent@1"),
        "whole": value("sparring_reply_seconds_count", adapter="agent@1"),
        "failed": sum(failures),
    }


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    fails=st.booleans(),
    leave_after=st.none() | st.integers(1, 5),
)
def test_each_stream_is_counted_once_and_closed(sizes, fails, leave_after):
    async def play() -> None:
        inside = Inside(sizes, EngineBusy("full") if fails else None)
        engine, metrics = around(inside)
        heard = []
        stream = engine.stream(REQUEST)
        try:
            async for chunk in stream:
                heard.append(chunk)
                if len(heard) == leave_after:
                    break
        except EngineBusy:
            assert fails
        await stream.aclose()
        left = leave_after is not None and leave_after <= len(sizes)
        assert [len(chunk.token_ids) for chunk in heard] == (sizes[:leave_after] if left else sizes)
        assert inside.closed
        finished = not fails and (not left or leave_after == len(sizes))
        expected = {"queue": 0, "running": 0, "first": 1, "whole": finished, "failed": not finished}
        assert reading(metrics) == expected

    asyncio.run(play())


@pytest.mark.parametrize("way", ["generate_async", "stream"])
async def test_a_request_is_queued_until_its_first_token(way):
    inside = Inside([1, 1])
    inside.gate.clear()
    engine, metrics = around(inside)

    async def ask() -> None:
        if way == "stream":
            async for _ in engine.stream(REQUEST):
                inside.gate.clear()
        else:
            await engine.generate_async(REQUEST)

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    assert reading(metrics) == {"queue": 1, "running": 1, "first": 0, "whole": 0, "failed": 0}
    inside.gate.set()
    if way == "stream":
        while reading(metrics)["first"] == 0:
            await asyncio.sleep(0)
        assert reading(metrics) == {"queue": 0, "running": 1, "first": 1, "whole": 0, "failed": 0}
        inside.gate.set()
        while not asking.done():
            inside.gate.set()
            await asyncio.sleep(0)
    await asking
    assert reading(metrics) == {"queue": 0, "running": 0, "first": way == "stream", "whole": 1, "failed": 0}


async def test_a_cancelled_request_is_told_from_a_failed_one():
    inside = Inside([1])
    inside.gate.clear()
    engine, metrics = around(inside)
    asking = asyncio.create_task(engine.generate_async(REQUEST))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    reason = {"adapter": "agent@1", "reason": "cancelled"}
    assert metrics.registry.get_sample_value("sparring_reply_failures_total", reason) == 1
    assert reading(metrics) == {"queue": 0, "running": 0, "first": 0, "whole": 0, "failed": 1}
