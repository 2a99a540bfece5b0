"""Parts of ``bench/serving_cost`` without a server: an instant model behind the application, and the engine."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
from load import Load, Target, at_once, at_rate, medians
from on_vllm import TOKENS, wait_for

from negotiation.catalogue import scenario_named
from negotiation.generation import BASE, GenerationRequest, Sampling
from negotiation.roles import Role
from negotiation.transcript import ChatFormat
from serving.auth import KeyStore
from sparring.compose import open_engine
from sparring.models import resolve_base_model
from sparring.settings import load_settings


def stub(folder: Path, repeats: int, seconds: float, postgres: str | None = None) -> dict[str, Any]:
    """Latency with a model that answers at once, at two rates, and of messages that are kept in each store.

    ``postgres`` is a server's address with a database in it, on which a schema is made and dropped again.
    """
    state = folder / "stub"
    state.mkdir()
    key = KeyStore(state / "keys.json").create_key("bench")
    headers, messages = {"Authorization": f"Bearer {key}"}, 64 if seconds < 5 else 512
    body = {"model": "sparring-agent", "messages": [{"role": "user", "content": "hello"}]}
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}

    def keep(what: str, kind: str, load: Load) -> None:
        runs.setdefault(what, {}).setdefault(kind, []).append(load.figures())

    for _ in range(repeats):
        for kind in ("bare", "sparring"):
            with _stub_service(state, kind) as url:
                target = Target(f"{url}/v1/chat/completions", headers, lambda n: body)
                wait_for(lambda target=target: httpx.post(target.url, json=body, headers=target.headers).is_success)
                for rate in (100, 1000):
                    keep(str(rate), kind, asyncio.run(at_rate(target, rate, seconds)))
                if kind == "sparring":
                    keep("conversations", "SQLite", asyncio.run(_messages(url, key, messages)))
        if postgres is not None:
            with _schema(postgres) as address, _stub_service(state, "sparring", address) as url:
                wait_for(lambda url=url: httpx.get(f"{url}/readyz").is_success)
                keep("conversations", "Postgres", asyncio.run(_messages(url, key, messages)))
    return {what: {kind: medians(figures) for kind, figures in kinds.items()} for what, kinds in runs.items()}


@contextmanager
def _stub_service(state: Path, kind: str, *checkpoints_url: str) -> Iterator[str]:
    """``stub.py`` while it runs: its address."""
    line = [sys.executable, str(Path(__file__).with_name("stub.py")), str(state), kind, *checkpoints_url]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextmanager
def _schema(postgres: str) -> Iterator[str]:
    """A schema of its own there, for as long as the context lasts: an address whose tables go into it."""
    name = f"sparring_bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
        try:
            yield f"{postgres}{'&' if '?' in postgres else '?'}options=-csearch_path%3D{name}"
        finally:
            connection.execute(f"DROP SCHEMA {name} CASCADE")


async def _messages(url: str, key: str, count: int) -> Load:
    """Messages of conversations, eight at once: kept, logged and answered one by one."""
    headers = {"Authorization": f"Bearer {key}"}
    scenario = scenario_named("telesales")
    opened = []
    async with httpx.AsyncClient(headers=headers, timeout=60) as client:
        for seed in range(max(8, count // 4)):
            context = scenario.generate(seed)
            views = {"agent": context.views[Role.AGENT]}
            asked = {"public": context.public, "views": views, "first_speaker": "counterpart"}
            answer = await client.post(f"{url}/v1/conversations", json={"scenario": "telesales", "context": asked})
            opened.append(answer.raise_for_status().json()["id"])
    target = Target(
        lambda n: f"{url}/v1/conversations/{opened[n % len(opened)]}/messages", headers, lambda n: {"text": "hello"}
    )
    return await at_once(target, count, 8)


async def in_process(repeats: int) -> dict[str, float]:
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
