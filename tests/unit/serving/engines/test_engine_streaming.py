"""Streams of the in-process engine: the tokens of the whole answer, as they are sampled, whoever leaves early."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from negotiation.generation import GenerationChunk, GenerationRequest, GenerationResult, Sampling
from negotiation.roles import Role
from serving.app import create_app
from serving.auth import KeyStore
from serving.config import ServingSettings
from serving.engines.decoding import NonFiniteLogits
from serving.engines.in_process import InProcessEngine
from serving.slots import AdapterSlots
from tests.unit.serving.conftest import DirectorySource, MemorySink

Make = Callable[..., InProcessEngine]
PROMPT, OTHER = (20, 21, 22, 23), (30, 31, 32, 33)


async def collect(engine: InProcessEngine, request: GenerationRequest) -> list[GenerationChunk]:
    return [chunk async for chunk in engine.stream(request)]


def whole(chunks: list[GenerationChunk]) -> GenerationResult:
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    assert chunks[-1].finish_reason is not None
    ids = tuple(token for chunk in chunks for token in chunk.token_ids)
    logprobs = tuple(logprob for chunk in chunks for logprob in chunk.logprobs)
    return GenerationResult(ids, logprobs, chunks[-1].finish_reason)


def requests(adapters: tuple[str, ...]) -> list[GenerationRequest]:
    """Rows of different lengths, greedy and seeded, some that stop, over several adapters."""
    made = []
    for number in range(12):
        sampling = Sampling(
            max_tokens=1 + 3 * (number % 5),
            temperature=float(number % 3 > 0),
            seed=number,
            stop_token_ids=tuple(range(10)) if number % 2 else (),
        )
        prompt = tuple(range(20, 24 + number % 4))
        made.append(GenerationRequest(prompt, adapters[number % len(adapters)], sampling))
    return made


async def test_streamed_tokens_are_those_of_the_whole_answer(
    make_engine: Make, write_adapter: Callable[..., Path]
) -> None:
    engine = make_engine()
    for seed, name in enumerate(("agent@1", "agent@2")):
        engine.load_adapter(name, write_adapter(name, seed=seed))
    asked = requests(("base", "agent@1", "agent@2"))
    expected = await asyncio.gather(*(engine.generate_async(request) for request in asked))
    for _ in range(2):  # the second time the prompts are in the prefix cache
        streamed = [whole(chunks) for chunks in await asyncio.gather(*(collect(engine, r) for r in asked))]
        for ours, theirs in zip(streamed, expected, strict=True):
            assert (ours.token_ids, ours.finish_reason) == (theirs.token_ids, theirs.finish_reason)
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def slowly(engine: InProcessEngine, sampled: threading.Semaphore) -> None:
    """Each step of the engine waits for a permit."""
    forward: Any = engine._decoder._forward

    def step(model: Any, buffer: Any, first: int, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        if tokens.shape[1] == 1:
            assert sampled.acquire(timeout=10)
        return forward(model, buffer, first, tokens, *rest)

    engine._decoder._forward = step  # type: ignore[method-assign]


async def waiting(engine: InProcessEngine, count: int) -> None:
    """Until so many requests wait for the batch that runs."""
    await asyncio.sleep(0)
    while engine.waiting != count:
        await asyncio.sleep(0.002)


async def test_a_token_arrives_before_the_next_one_is_sampled(make_engine: Make) -> None:
    engine, permits = make_engine(), threading.Semaphore(0)
    slowly(engine, permits)
    stream = engine.stream(GenerationRequest(PROMPT, sampling=Sampling(max_tokens=3, temperature=0.0)))
    for number in range(3):
        permits.release()
        chunk = await anext(stream)
        assert len(chunk.token_ids) == 1
        assert (chunk.finish_reason is not None) == (number == 2)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_short_answer_does_not_wait_for_a_long_one_of_its_batch(make_engine: Make) -> None:
    engine, permits = make_engine(), threading.Semaphore(0)
    slowly(engine, permits)
    held = engine.stream(GenerationRequest(OTHER, sampling=Sampling(max_tokens=1, temperature=0.0)))
    first = asyncio.create_task(anext(held))
    await waiting(engine, 0)  # it is alone in its batch, which waits; the next two share one
    short, long = (
        asyncio.create_task(collect(engine, GenerationRequest(PROMPT, sampling=Sampling(max_tokens=tokens))))
        for tokens in (1, 4)
    )
    await waiting(engine, 2)
    permits.release(2)
    await first
    assert len(whole(await short).token_ids) == 1
    assert not long.done()
    permits.release(3)
    assert len(whole(await long).token_ids) == 4
    await held.aclose()


async def test_who_leaves_early_frees_the_row_and_disturbs_nobody(make_engine: Make) -> None:
    engine, permits = make_engine(), threading.Semaphore(0)
    stays = GenerationRequest(PROMPT, sampling=Sampling(max_tokens=6, temperature=0.0))
    leaves = GenerationRequest((22, 23, 24, 25), sampling=Sampling(max_tokens=100, temperature=0.0))
    expected = await engine.generate_async(stays)
    slowly(engine, permits)
    held = asyncio.create_task(engine.generate_async(GenerationRequest(OTHER, sampling=Sampling(max_tokens=1))))
    await waiting(engine, 0)
    staying, leaving = asyncio.create_task(collect(engine, stays)), engine.stream(leaves)
    first = asyncio.create_task(anext(leaving))
    await waiting(engine, 2)
    permits.release(2)
    await held
    await first
    await leaving.aclose()
    permits.release(5)
    assert whole(await staying).token_ids == expected.token_ids
    permits.release()
    again = await engine.generate_async(GenerationRequest(OTHER, sampling=Sampling(max_tokens=1)))
    assert len(again.token_ids) == 1, "the batch ended although 100 tokens were asked for"
    permits.release(100)
    alone = await make_engine().generate_async(leaves)
    assert whole(await collect(engine, leaves)).token_ids == alone.token_ids


async def test_a_failure_after_the_first_token_reaches_the_consumer(make_engine: Make) -> None:
    engine = make_engine()
    forward: Any = engine._decoder._forward
    steps = iter(range(100))

    def breaks(model: Any, buffer: Any, first: int, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        logits: torch.Tensor = forward(model, buffer, first, tokens, *rest)
        return logits * float("nan") if tokens.shape[1] == 1 and next(steps) == 2 else logits

    engine._decoder._forward = breaks  # type: ignore[method-assign]
    stream = engine.stream(GenerationRequest(PROMPT, sampling=Sampling(max_tokens=5)))
    heard = list((await anext(stream)).token_ids)

    async def the_rest() -> None:
        async for chunk in stream:
            heard.extend(chunk.token_ids)

    with pytest.raises(NonFiniteLogits):
        await the_rest()
    assert len(heard) == 2, "nothing from the broken token on"
    assert whole(await collect(engine, GenerationRequest(PROMPT, sampling=Sampling(max_tokens=2))))


def test_a_loop_that_was_closed_does_not_stop_the_engine(make_engine: Make) -> None:
    engine, permits = make_engine(), threading.Semaphore(0)
    slowly(engine, permits)
    loop = asyncio.new_event_loop()
    stream = engine.stream(GenerationRequest(PROMPT, sampling=Sampling(max_tokens=50)))
    permits.release()
    loop.run_until_complete(anext(stream))
    loop.close()
    permits.release(100)
    assert engine.generate([GenerationRequest(PROMPT, sampling=Sampling(max_tokens=2))])
    assert engine._batcher.submit(GenerationRequest(PROMPT, sampling=Sampling(max_tokens=2))).result(10)


async def test_a_streamed_completion_comes_in_parts(
    tmp_path: Path, make_engine: Make, write_adapter: Callable[..., Path]
) -> None:
    settings = ServingSettings(state_dir=tmp_path / "shop")
    write_adapter("agent@1")
    engine, permits = make_engine(), threading.Semaphore(0)
    app = create_app(settings, engine, AdapterSlots(Role.AGENT), MemorySink(), DirectorySource(tmp_path / "adapters"))
    headers = {"Authorization": f"Bearer {KeyStore(settings.keys_path).create_key('acme')}"}
    asked = {"model": "sparring-agent", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop", headers=headers)
    async with app.router.lifespan_context(app), client:
        await app.state.service.reconcile()
        answer = await client.post("/v1/chat/completions", json=asked)
        slowly(engine, permits)
        streaming = asyncio.create_task(client.post("/v1/chat/completions", json={**asked, "stream": True}))
        while not streaming.done():
            permits.release()
            await asyncio.sleep(0.005)  # the loop has its turn between two tokens
        streamed = await streaming
    assert answer.status_code == 200, answer.text
    parts = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    texts = [choice["delta"].get("content") or "" for part in parts for choice in part["choices"]]
    assert "".join(texts) == answer.json()["choices"][0]["message"]["content"]
    assert sum(bool(text) for text in texts) >= 2
