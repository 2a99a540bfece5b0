"""The vLLM engine against real vLLM servers: same tokens as in process, and every trap of run-time adapters."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from negotiation.catalogue import scenario_named
from negotiation.generation import BASE, GenerationRequest, GenerationResult, Sampling
from negotiation.roles import Role
from negotiation.transcript import ChatFormat
from serving.config import VllmSettings
from serving.engines import EngineUnavailable
from serving.engines.in_process import InProcessEngine
from serving.engines.vllm import VllmEngine
from sparring.models import ResolvedModel
from tests.service.vllm_servers import VllmServer, bundled, needs_vllm, random_adapter

pytestmark = [pytest.mark.service, pytest.mark.timeout(600), needs_vllm]
ADAPTERS = tuple(f"agent@{version}" for version in range(1, 7))


@pytest.fixture(scope="module")
def model() -> ResolvedModel:
    return bundled()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, model: ResolvedModel) -> Iterator[list[VllmServer]]:
    folder = tmp_path_factory.mktemp("vllm")
    started = [VllmServer(folder, model).start() for _ in range(2)]
    try:
        yield [server.wait() for server in started]
    finally:
        for server in started:
            server.kill()


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, model: ResolvedModel) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: random_adapter(model, folder, name, seed) for seed, name in enumerate(ADAPTERS)}


def open_engine(model: ResolvedModel, *servers: VllmServer) -> VllmEngine:
    settings = VllmSettings(urls=[server.url for server in servers], probe_seconds=0.5)  # type: ignore[misc]
    return VllmEngine(model.path, model.sha256, settings, max_adapters=8)


@pytest.fixture
def engine(model: ResolvedModel, servers: list[VllmServer]) -> Iterator[VllmEngine]:
    """Over the first server; what it loaded is unloaded again."""
    opened = open_engine(model, servers[0])
    yield opened
    for name in opened.loaded_adapters():
        opened.unload_adapter(name)
    opened.close()


@pytest.fixture(scope="module")
def in_process(model: ResolvedModel, adapters: dict[str, Path]) -> Iterator[InProcessEngine]:
    engine = InProcessEngine(model.path, model.sha256, max_adapters=8, max_batch=32, threads=1)
    for name, directory in adapters.items():
        engine.load_adapter(name, directory)
    yield engine
    engine.close()


def prompts(engine: VllmEngine | InProcessEngine, count: int = 4) -> list[tuple[int, ...]]:
    """Openings of telesales conversations, as serving makes them."""
    scenario, chat = scenario_named("telesales"), ChatFormat(engine.tokenizer)
    texts = [scenario.system_prompt(Role.AGENT, scenario.generate(seed)) for seed in range(count)]
    return [tuple(chat.opening(text)) for text in texts]


def greedy(prompt: tuple[int, ...], adapter: str, tokens: int = 12) -> GenerationRequest:
    return GenerationRequest(prompt, adapter, Sampling(max_tokens=tokens, temperature=0.0))


def test_tokens_and_log_probabilities_are_those_of_the_engine_in_process(
    engine: VllmEngine, in_process: InProcessEngine, adapters: dict[str, Path]
) -> None:
    engine.load_adapter("agent@1", adapters["agent@1"])
    for name in (BASE, "agent@1"):
        requests = [greedy(prompt, name) for prompt in prompts(engine)]
        for ours, theirs in zip(engine.generate(requests), in_process.generate(requests), strict=True):
            assert ours.token_ids == theirs.token_ids
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-3)
    # Sampled: whatever came, its log-probability is that of the plain distribution.
    [prompt] = prompts(engine, 1)
    asked = [GenerationRequest(prompt, "agent@1", Sampling(max_tokens=1, temperature=1.0)) for _ in range(64)]
    seen = {result.token_ids[0]: result.logprobs[0] for result in engine.generate(asked)}
    known = {result.token_ids[0]: result.logprobs[0] for result in in_process.generate(asked * 4)}
    assert len(seen.keys() & known.keys()) > 1
    assert all(seen[token] == pytest.approx(known[token], abs=1e-3) for token in seen.keys() & known.keys())


async def test_a_stream_comes_in_parts_and_stops_when_nobody_listens(
    engine: VllmEngine, servers: list[VllmServer]
) -> None:
    [prompt] = prompts(engine, 1)
    whole = await engine.generate_async(greedy(prompt, BASE))
    chunks = [chunk async for chunk in engine.stream(greedy(prompt, BASE))]
    assert len(chunks) > 1
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == whole.token_ids
    stream = engine.stream(greedy(prompt, BASE, tokens=300))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    for _ in range(100):
        metrics = httpx.get(f"{servers[0].url}/metrics").text
        running = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
        if running and all(float(line.split()[-1]) == 0 for line in running):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the server goes on for a client that left")


def test_a_new_version_answers_from_its_own_weights_after_the_old_one_filled_the_cache(
    engine: VllmEngine, model: ResolvedModel, servers: list[VllmServer], adapters: dict[str, Path]
) -> None:
    """Equal to a server that only ever knew the new version."""
    engine.load_adapter("agent@1", adapters["agent@1"])
    asked = prompts(engine)
    old = engine.generate([greedy(prompt, "agent@1") for prompt in asked] * 2)[: len(asked)]
    engine.load_adapter("agent@2", adapters["agent@2"])
    new = engine.generate([greedy(prompt, "agent@2") for prompt in asked])
    fresh = open_engine(model, servers[1])
    try:
        fresh.load_adapter("agent@2", adapters["agent@2"])
        expected = fresh.generate([greedy(prompt, "agent@2") for prompt in asked])
        fresh.unload_adapter("agent@2")
    finally:
        fresh.close()
    assert [result.token_ids for result in new] == [result.token_ids for result in expected]
    for result, wanted in zip(new, expected, strict=True):
        assert result.logprobs == pytest.approx(wanted.logprobs, abs=1e-3)
    assert [result.token_ids for result in new] != [result.token_ids for result in old]


def test_no_request_is_answered_by_another_adapter_while_adapters_come_and_go(
    engine: VllmEngine, in_process: InProcessEngine, adapters: dict[str, Path]
) -> None:
    asked = prompts(engine)
    expected: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
    for name in ADAPTERS:
        results = in_process.generate([greedy(prompt, name) for prompt in asked])
        expected |= {(name, prompt): result.token_ids for prompt, result in zip(asked, results, strict=True)}
    for prompt in asked:
        assert len({expected[name, prompt] for name in ADAPTERS}) == len(ADAPTERS), "answers must be told apart"
    stay, come = ADAPTERS[:3], ADAPTERS[3:]
    for name in stay:
        engine.load_adapter(name, adapters[name])
    wrong: list[str] = []
    done = threading.Event()
    answered = 0

    async def customer(number: int) -> None:
        nonlocal answered
        turn = 0
        while not done.is_set():
            name, prompt = stay[(number + turn) % len(stay)], asked[turn % len(asked)]
            result = await engine.generate_async(greedy(prompt, name))
            answered, turn = answered + 1, turn + 1
            if result.token_ids != expected[name, prompt]:
                told = [other for other in ADAPTERS if expected[other, prompt] == result.token_ids]
                wrong.append(f"{name} answered as {told}")

    async def customers() -> None:
        await asyncio.gather(*(customer(number) for number in range(32)))

    crowd = threading.Thread(target=lambda: asyncio.run(customers()))
    crowd.start()
    swaps = 0
    try:
        for turn in range(12):
            name = come[turn % len(come)]
            engine.load_adapter(name, adapters[name])
            [result] = engine.generate([greedy(asked[0], name)])
            assert result.token_ids == expected[name, asked[0]]
            engine.unload_adapter(name)
            swaps += 1
    finally:
        done.set()
        crowd.join()
    assert not wrong
    assert swaps == 12
    assert answered > 32


def test_a_killed_server_gets_its_adapters_back_before_it_is_asked(
    model: ResolvedModel, servers: list[VllmServer], adapters: dict[str, Path]
) -> None:
    engine = open_engine(model, *servers)
    try:
        engine.load_adapter("agent@1", adapters["agent@1"])
        asked = [greedy(prompt, "agent@1") for prompt in prompts(engine)]
        before = answers(engine.generate(asked))
        fingerprint = engine.fingerprint("agent@1")
        servers[1].kill()
        # The other one takes over, whoever was home to the prompt.
        assert answers(engine.generate(asked)) == before
        assert sorted(replica.state for replica in engine.replicas) == ["down", "up"]
        servers[0].kill()
        with pytest.raises(EngineUnavailable):
            engine.generate(asked)
        assert engine.loaded_adapters() == frozenset()
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        while [replica.state for replica in engine.replicas] != ["up", "up"]:
            threading.Event().wait(0.2)
        assert answers(engine.generate(asked)) == before
        assert engine.fingerprint("agent@1") == fingerprint
        engine.unload_adapter("agent@1")
        for server in servers:
            listed = httpx.get(f"{server.url}/v1/models").json()["data"]
            assert [entry["id"] for entry in listed] == ["base"]
    finally:
        engine.close()


def answers(results: list[GenerationResult]) -> list[tuple[int, ...]]:
    return [result.token_ids for result in results]


def test_training_plays_its_rollouts_on_the_servers(servers: list[VllmServer], tmp_path: Path) -> None:
    """Sampler and trainer agree: what vLLM says of its tokens is what the learner finds."""
    urls = json.dumps([server.url for server in servers])
    settings = {
        "SPARRING_TRAINING__ROLLOUT_URLS": urls,
        "SPARRING_TRAINING__SCENARIOS_PER_STEP": "2",
        "SPARRING_TRAINING__GROUP_SIZE": "4",
        "SPARRING_TRAINING__THREADS": "1",
        "SPARRING_TRAINING__VALIDATION_EVERY": "0",
        "SPARRING_STATE_DIR": str(tmp_path / "state"),
        "OMP_NUM_THREADS": "1",
    }
    options = ["--output", str(tmp_path / "run"), "--steps", "2", "--seed", "3"]
    command = [sys.executable, "-m", "sparring.cli", "cotrain", *options]
    finished = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    steps = json.loads((tmp_path / "run" / "result.json").read_text())["steps"]
    assert len(steps) == 2
    for step in steps:
        for update in step["updates"].values():
            assert update["logprob_gap_max"] < 1e-3
            assert update["tokens_trained"] > 0
