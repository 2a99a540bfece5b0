"""The vLLM engine against servers that fail in every way they do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.generation import (
    BASE,
    AdapterNotLoaded,
    Engine,
    GenerationRequest,
    PromptTooLong,
    Sampling,
)
from serving.adapters import AdapterRejected
from serving.config import VllmSettings
from serving.engines import AdapterSlotsFull, EngineBusy, EngineClosed, EngineUnavailable
from serving.engines.retries import RESERVE, Retries
from serving.engines.vllm import VllmEngine
from serving.engines.vllm_protocol import ReplicaFailed
from tests.unit.serving.engines.fake_vllm import CONTEXT, FakeServer, network

Open = Callable[..., VllmEngine]
Write = Callable[..., Path]
DEAD = httpx.ConnectError("connection refused")


@pytest.fixture
def servers() -> dict[str, FakeServer]:
    return {"one": FakeServer(), "two": FakeServer()}


@pytest.fixture
def open_engine(servers: dict[str, FakeServer], tiny_model_dir: Path, tiny_base_sha256: str) -> Iterator[Open]:
    engines: list[VllmEngine] = []

    def start(*hosts: str, max_waiting: int = 64, max_adapters: int = 3, **options: Any) -> VllmEngine:
        urls = [f"http://{host}" for host in hosts or servers]
        # The upkeep thread sleeps through a test: what repairs is then the test's own call, or a request's.
        settings = VllmSettings(urls=urls, probe_seconds=300, **options)  # type: ignore[arg-type]
        engines.append(
            VllmEngine(
                tiny_model_dir,
                tiny_base_sha256,
                settings,
                max_adapters=max_adapters,
                max_waiting=max_waiting,
                transport=network(servers),
            )
        )
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def ask(*ids: int, adapter: str = BASE, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(ids or (1, 2, 3), adapter, Sampling(**{"max_tokens": 4, **sampling}))


def states(engine: VllmEngine) -> list[str]:
    return [replica.state for replica in engine.replicas]


def look_after(engine: VllmEngine) -> None:
    for replica in engine._replicas:
        engine._keeper.repair(replica)


def test_is_an_engine(open_engine: Open) -> None:
    engine = open_engine()
    assert isinstance(engine, Engine)
    assert engine.context_length == CONTEXT
    assert states(engine) == ["up", "up"]


def test_every_sampling_parameter_is_said(open_engine: Open, servers: dict[str, FakeServer]) -> None:
    """What is left out, vLLM takes from the model's generation_config.json."""
    open_engine("one").generate([ask(temperature=0.7, stop_token_ids=(5,))])
    body = servers["one"].completions[-1]
    said = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert said.items() <= body.items()
    assert (body["ignore_eos"], body["stop_token_ids"]) == (True, [5])


@given(st.lists(st.tuples(st.integers(0, 49), st.sampled_from([0.0, 1.0]), st.booleans()), max_size=24))
def test_answer_i_belongs_to_request_i(tiny_model_dir: Path, asked: list[tuple[int, float, bool]]) -> None:
    servers = {"one": FakeServer(), "two": FakeServer()}
    settings = VllmSettings(urls=["http://one", "http://two"], probe_seconds=300, prompts_per_request=3)  # type: ignore[list-item]
    engine = VllmEngine(tiny_model_dir, "0" * 64, settings, max_adapters=1, transport=network(servers))
    try:
        requests = [
            ask(token, temperature=warmth, seed=place if seeded else None)
            for place, (token, warmth, seeded) in enumerate(asked)
        ]
        results = engine.generate(requests)
    finally:
        engine.close()
    assert [result.token_ids[0] for result in results] == [token for token, _, _ in asked]
    for body in [*servers["one"].completions, *servers["two"].completions]:
        # A server draws the same for all prompts of a request with a seed: those go alone.
        assert len(body["prompt"]) == 1 or body["seed"] is None


def test_an_adapter_is_on_every_replica_and_its_name_carries_its_digest(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    engine = open_engine()
    engine.load_adapter("agent@1", write_adapter("agent@1", seed=1))
    [wire] = servers["one"].adapters
    assert list(servers["two"].adapters) == [wire]
    engine.unload_adapter("agent@1")
    assert servers["one"].adapters == servers["two"].adapters == {}
    # A registry that begins again gives the name to other weights; a server's prefix cache must not know them.
    engine.load_adapter("agent@1", write_adapter("agent@1", seed=2))
    assert list(servers["one"].adapters) != [wire]


def test_an_adapter_that_one_replica_refuses_is_left_on_none(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    engine = open_engine()
    servers["two"].fails = lambda path, body: (
        httpx.Response(400, text="rank too high for this lora") if path.endswith("load_lora_adapter") else None
    )
    with pytest.raises(AdapterRejected, match=r"two refuses .* rank too high"):
        engine.load_adapter("agent@1", write_adapter("agent@1"))
    assert servers["one"].adapters == {}
    assert engine.loaded_adapters() == frozenset()
    assert states(engine) == ["up", "up"]


def test_an_adapter_that_changes_nothing_is_refused(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    engine = open_engine("one")
    servers["one"].ignores_adapters = True
    with pytest.raises(AdapterRejected, match="changes nothing"):
        engine.load_adapter("agent@1", write_adapter("agent@1"))
    assert servers["one"].adapters == {}


def test_one_without_weight_is_accepted(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    servers["one"].ignores_adapters = True
    open_engine("one").load_adapter("agent@1", write_adapter("agent@1", spread=0))


def test_replicas_that_do_not_agree_on_an_adapter(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    engine = open_engine()
    servers["two"].ignores_adapters = True
    with pytest.raises(AdapterRejected, match="do not agree"):
        engine.load_adapter("agent@1", write_adapter("agent@1"))


def test_slots_names_and_bases_are_checked_before_any_server_is_asked(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    engine = open_engine("one", max_adapters=1)
    engine.load_adapter("agent@1", write_adapter("agent@1"))
    servers["one"].fails = lambda path, body: DEAD
    with pytest.raises(ValueError, match="loaded already"):
        engine.load_adapter("agent@1", write_adapter("agent@1"))
    with pytest.raises(AdapterSlotsFull, match="limit is 1"):
        engine.load_adapter("agent@2", write_adapter("agent@2"))
    with pytest.raises(ValueError, match="of the form"):
        engine.load_adapter("../agent@2", write_adapter("agent@2"))


def test_a_replica_that_was_away_gets_its_adapters_before_any_request(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    servers["two"].fails = lambda path, body: DEAD
    engine = open_engine()
    assert states(engine) == ["up", "down"]
    engine.load_adapter("agent@1", write_adapter("agent@1"))
    servers["two"].fails = lambda path, body: None
    engine.generate([ask(token, adapter="agent@1", seed=token) for token in range(20)])
    assert servers["two"].completions == []
    look_after(engine)
    assert states(engine) == ["up", "up"]
    assert servers["two"].adapters == servers["one"].adapters


def test_a_restarted_replica_never_answers_without_the_adapter(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    engine = open_engine("one")
    engine.load_adapter("agent@1", write_adapter("agent@1"))
    [before] = engine.generate([ask(adapter="agent@1")])
    servers["one"].restart()
    assert engine.generate([ask(adapter="agent@1")]) == [before]
    servers["one"].restart()
    look_after(engine)
    assert list(servers["one"].adapters)
    assert states(engine) == ["up"]


def test_a_replica_of_another_base_stays_out(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    servers["two"].weights = 7
    engine = open_engine()
    assert states(engine) == ["up", "down"]
    assert "base model" in engine.replicas[1].reason


def test_weights_that_change_behind_a_name_change_the_fingerprint(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    engine = open_engine()
    engine.load_adapter("agent@1", write_adapter("agent@1"))
    before = engine.fingerprint("agent@1")
    assert engine.fingerprint("agent@1") == before != engine.fingerprint(BASE)
    [wire] = servers["two"].adapters
    servers["two"].adapters[wire] += 1
    assert engine.fingerprint("agent@1") != before


def test_a_failing_replica_is_left_and_the_other_answers(open_engine: Open, servers: dict[str, FakeServer]) -> None:
    engine = open_engine()
    servers["one"].fails = lambda path, body: httpx.Response(503, text="shutting down")
    results = asyncio.run(_gather(engine, 12))
    assert len(results) == 12
    look_after(engine)
    assert states(engine) == ["down", "up"]
    assert "503" in engine.replicas[0].reason


async def _gather(engine: VllmEngine, count: int) -> list[Any]:
    return await asyncio.gather(*(engine.generate_async(ask(token)) for token in range(count)))


def test_nobody_up_is_said_and_nothing_else_is_wrong(open_engine: Open, servers: dict[str, FakeServer]) -> None:
    engine = open_engine("one")
    servers["one"].fails = lambda path, body: DEAD
    with pytest.raises(EngineUnavailable, match="connection refused"):
        engine.generate([ask()])
    assert engine.loaded_adapters() == frozenset()
    servers["one"].fails = lambda path, body: None
    look_after(engine)
    assert len(engine.generate([ask()])) == 1


def test_no_server_at_the_start(open_engine: Open, servers: dict[str, FakeServer]) -> None:
    servers["one"].fails = lambda path, body: DEAD
    with pytest.raises(EngineUnavailable, match=r"http://one: .*connection refused"):
        open_engine("one")


def test_a_request_that_is_refused_is_not_repeated(open_engine: Open, servers: dict[str, FakeServer]) -> None:
    engine, asked = open_engine("one"), []

    def refuse(path: str, body: dict[str, Any]) -> httpx.Response | None:
        asked.append(path)
        return httpx.Response(400, json={"error": {"message": "no"}})

    servers["one"].fails = refuse
    with pytest.raises(ValueError, match="HTTP 400"):
        engine.generate([ask()])
    assert asked == ["/v1/completions"]
    assert states(engine) == ["up"]


def test_a_slow_answer_is_a_timeout(open_engine: Open, servers: dict[str, FakeServer]) -> None:
    engine = open_engine("one")
    servers["one"].fails = lambda path, body: httpx.ReadTimeout("slow")
    with pytest.raises(TimeoutError):
        engine.generate([ask()])


async def test_retries_end_with_the_attempts_and_with_the_budget() -> None:
    tries = 0

    async def fail(retries: Retries) -> None:
        nonlocal tries
        async for attempt in retries.attempts():
            with attempt:
                tries += 1
                raise ReplicaFailed("down")

    generous = Retries(attempts=3, share=1.0)
    with pytest.raises(ReplicaFailed):
        await fail(generous)
    assert tries == 3
    tries, stingy = 0, Retries(attempts=2, share=0.0)
    for _ in range(int(RESERVE) + 5):
        with pytest.raises(ReplicaFailed):
            await fail(stingy)
    assert tries == (int(RESERVE) + 5) + int(RESERVE)


async def test_a_stream_is_the_answer_in_parts(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    engine = open_engine("one")
    engine.load_adapter("agent@1", write_adapter("agent@1"))
    whole = await engine.generate_async(ask(adapter="agent@1"))
    chunks = [chunk async for chunk in engine.stream(ask(adapter="agent@1"))]
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == whole.token_ids
    assert [chunk.finish_reason for chunk in chunks] == [None, None, None, "length"]


async def test_a_stream_that_breaks_early_is_begun_elsewhere_and_one_that_was_shown_is_not(
    open_engine: Open, servers: dict[str, FakeServer]
) -> None:
    engine = open_engine()
    for server in servers.values():
        server.breaks_after = 2
    stream = engine.stream(ask())
    assert len([await anext(stream) for _ in range(2)]) == 2
    with pytest.raises(EngineUnavailable, match="ended before"):
        await anext(stream)
    look_after(engine)
    servers["one"].breaks_after = 0
    servers["two"].breaks_after = None
    for token in range(8):
        assert len([chunk async for chunk in engine.stream(ask(token))]) == 4


async def test_leaving_a_stream_frees_its_place(open_engine: Open) -> None:
    engine = open_engine("one", max_waiting=1)
    stream = engine.stream(ask())
    await anext(stream)
    with pytest.raises(EngineBusy, match="the limit is 1"):
        await engine.generate_async(ask())
    await stream.aclose()  # type: ignore[attr-defined]
    assert (engine.waiting, engine.replicas[0].in_flight) == (0, 0)
    await engine.generate_async(ask())


def test_bad_requests_are_refused_at_the_entrance(open_engine: Open, servers: dict[str, FakeServer]) -> None:
    engine = open_engine("one")
    servers["one"].fails = lambda path, body: DEAD
    with pytest.raises(AdapterNotLoaded, match="agent@9"):
        engine.generate([ask(adapter="agent@9")])
    with pytest.raises(PromptTooLong, match=f"context of {CONTEXT}"):
        engine.generate([ask(*([1] * CONTEXT))])
    with pytest.raises(ValueError, match="prompt ids must be"):
        engine.generate([ask(10**6)])
    with pytest.raises(ValueError, match="empty"):
        engine.generate([GenerationRequest(())])
    engine.close()
    with pytest.raises(EngineClosed):
        engine.generate([ask()])


def test_nothing_is_asked_that_ends_the_server(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    """vLLM 0.32's engine dies of prompt_logprobs when adapters and other requests are in the batch."""
    engine = open_engine("one")
    engine.load_adapter("agent@1", write_adapter("agent@1"))
    engine.generate([ask(adapter="agent@1")])
    engine.fingerprint("agent@1")
    assert servers["one"].completions
    assert all(body.get("prompt_logprobs") is None for body in servers["one"].completions)
    # And what is asked to prove the weights is too short for a prefix cache to answer.
    assert all(len(prompt) < 16 for body in servers["one"].completions for prompt in body["prompt"])


def test_an_answer_for_another_prompt_is_not_taken(open_engine: Open, servers: dict[str, FakeServer]) -> None:
    engine = open_engine("one")

    def mixed_up(path: str, body: dict[str, Any]) -> httpx.Response | None:
        if path != "/v1/completions":
            return None
        choice = servers["one"]._choice(0, [9, 9], 0, body)
        return httpx.Response(200, json={"choices": [choice]})

    servers["one"].fails = mixed_up
    with pytest.raises(EngineUnavailable, match="came back for"):
        engine.generate([ask()])


def test_many_threads_and_a_swap_at_once(
    open_engine: Open, servers: dict[str, FakeServer], write_adapter: Write
) -> None:
    engine = open_engine()
    first, second = write_adapter("agent@1", seed=1), write_adapter("agent@2", seed=2)
    engine.load_adapter("agent@1", first)
    [expected] = engine.generate([ask(adapter="agent@1")])
    wrong: list[Any] = []

    def hammer() -> None:
        for _ in range(20):
            if engine.generate([ask(adapter="agent@1")]) != [expected]:
                wrong.append("other weights answered")

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        engine.load_adapter("agent@2", second)
        engine.unload_adapter("agent@2")
    for thread in threads:
        thread.join()
    assert not wrong
