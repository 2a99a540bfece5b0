"""Concurrent callers share batches; one caller's failure, cancellation or the shutdown reaches who it concerns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from negotiation.generation import AdapterNotLoaded, GenerationRequest, GenerationResult, Sampling
from serving.engines import EngineBusy, EngineClosed
from serving.engines.batcher import Batcher, Outcome
from serving.engines.in_process import InProcessEngine

Make = Callable[..., InProcessEngine]


def request(token: int) -> GenerationRequest:
    return GenerationRequest((token,))


class Gate:
    """Answers with the prompt's own tokens, once opened; remembers the batches that it was given."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, requests: Sequence[GenerationRequest], listeners: Sequence[object]) -> list[Outcome]:
        self.batches.append([request.prompt_ids[0] for request in requests])
        self.entered.set()
        assert self.open.wait(10)
        return [self.answer(request) for request in requests]

    @staticmethod
    def answer(request: GenerationRequest) -> Outcome:
        token = request.prompt_ids[0]
        return AdapterNotLoaded(str(token)) if token >= 100 else GenerationResult((token,), (0.0,), "stop")


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def batcher(gate: Gate) -> Iterator[Batcher]:
    batcher = Batcher(gate, max_batch=3, max_waiting=5)
    yield batcher
    gate.open.set()
    batcher.close()


def test_what_waits_is_answered_together_in_order(gate: Gate, batcher: Batcher) -> None:
    futures = [batcher.submit(request(0))]
    assert gate.entered.wait(10)
    futures += [batcher.submit(request(token)) for token in (1, 2, 3, 4)]
    gate.open.set()
    assert [future.result(10).token_ids for future in futures] == [(0,), (1,), (2,), (3,), (4,)]
    assert gate.batches == [[0], [1, 2, 3], [4]]


def test_a_full_queue_refuses_and_says_so(gate: Gate, batcher: Batcher) -> None:
    batcher.submit(request(0))
    assert gate.entered.wait(10)
    for token in range(5):
        batcher.submit(request(token))
    assert batcher.waiting == 5
    with pytest.raises(EngineBusy, match=r"limit is 5.*later"):
        batcher.submit(request(9))


def test_a_failure_reaches_its_own_caller_only(gate: Gate, batcher: Batcher) -> None:
    gate.open.set()
    futures = [batcher.submit(request(token)) for token in (1, 100, 2)]
    with pytest.raises(AdapterNotLoaded, match="100"):
        futures[1].result(10)
    assert [futures[0].result(10).token_ids, futures[2].result(10).token_ids] == [(1,), (2,)]


def test_a_crash_of_a_batch_does_not_stop_the_worker() -> None:
    calls = 0

    def run(requests: Sequence[GenerationRequest], listeners: Sequence[object]) -> list[Outcome]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise MemoryError("no room")
        return [Gate.answer(request) for request in requests]

    batcher = Batcher(run, max_batch=1, max_waiting=5)
    first, second = batcher.submit(request(1)), batcher.submit(request(2))
    with pytest.raises(MemoryError):
        first.result(10)
    assert second.result(10).token_ids == (2,)
    batcher.close()


def test_cancelled_requests_are_not_run(gate: Gate, batcher: Batcher) -> None:
    batcher.submit(request(0))
    assert gate.entered.wait(10)
    gone, stays = batcher.submit(request(1)), batcher.submit(request(2))
    assert gone.cancel()
    gate.open.set()
    assert stays.result(10).token_ids == (2,)
    assert [1] not in gate.batches
    assert [1, 2] not in gate.batches


def test_closing_fails_what_waits_and_finishes_what_runs(gate: Gate, batcher: Batcher) -> None:
    running = batcher.submit(request(0))
    assert gate.entered.wait(10)
    waiting = batcher.submit(request(1))
    closer = threading.Thread(target=batcher.close)
    closer.start()
    with pytest.raises(EngineClosed, match="shut down"):
        waiting.result(10)
    gate.open.set()
    closer.join(10)
    assert running.result(10).token_ids == (0,)
    with pytest.raises(EngineClosed):
        batcher.submit(request(2))


async def test_many_callers_of_an_engine_get_what_they_would_alone(make_engine: Make) -> None:
    engine = make_engine()
    requests = [GenerationRequest((seed + 1, 7, 9), sampling=Sampling(max_tokens=6, seed=seed)) for seed in range(40)]
    together = await asyncio.gather(*[engine.generate_async(request) for request in requests])
    assert [result.token_ids for result in together] == [engine.generate([r])[0].token_ids for r in requests]


async def test_an_adapter_unloaded_while_requests_wait_fails_those_alone(
    make_engine: Make, write_adapter: Callable[..., Path]
) -> None:
    engine = make_engine()
    engine.load_adapter("agent@1", write_adapter("agent@1"))
    sampling = Sampling(max_tokens=3, temperature=0.0)
    with engine._compute:
        first = asyncio.create_task(engine.generate_async(GenerationRequest((1,), sampling=sampling)))
        await asyncio.sleep(0.05)
        lost = asyncio.create_task(engine.generate_async(GenerationRequest((1,), "agent@1", sampling)))
        kept = asyncio.create_task(engine.generate_async(GenerationRequest((2,), sampling=sampling)))
        await asyncio.sleep(0)
        # What unload_adapter does once it has the locks.
        del engine._loaded["agent@1"]
    assert len((await first).token_ids) == len((await kept).token_ids) == 3
    with pytest.raises(AdapterNotLoaded, match="agent@1"):
        await lost


async def test_a_closed_engine_says_so(make_engine: Make) -> None:
    engine = make_engine()
    engine.close()
    engine.close()
    with pytest.raises(EngineClosed):
        await engine.generate_async(request(1))
    with pytest.raises(EngineClosed):
        engine.generate([request(1)])
