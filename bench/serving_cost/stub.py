"""A service whose model answers at once, and a bare endpoint beside it: what serving itself costs.

Run: ``python bench/serving_cost/stub.py STATE_DIR sparring|bare [POSTGRES_URL]``; prints its address once it accepts
connections. It serves the real application (keys, limits, slots, metrics), with conversations in SQLite or in the
Postgres that is named; only the engine says the same few words without thinking.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request

from negotiation.event_log import EventSink
from negotiation.events import ConversationEvent
from negotiation.generation import BASE, GenerationChunk, GenerationRequest, GenerationResult, Tokenizer
from negotiation.roles import Role
from serving.app import create_app
from serving.config import ServingSettings
from serving.engines import ReplicaStatus
from serving.server import bind, serve
from serving.slots import AdapterSlots
from sparring.models import resolve_base_model


class InstantEngine:
    """Says "Good day." with every adapter."""

    context_length = 512
    replicas: tuple[ReplicaStatus, ...] = ()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._ids = tuple(tokenizer.encode("Good day.<|end|>", add_special_tokens=False))
        self._loaded = {BASE}

    async def generate_async(self, request: GenerationRequest) -> GenerationResult:
        return GenerationResult(self._ids, (-0.1,) * len(self._ids), "stop")

    async def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        yield GenerationChunk(self._ids, (-0.1,) * len(self._ids), "stop")

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        return [GenerationResult(self._ids, (-0.1,) * len(self._ids), "stop") for _ in requests]

    def load_adapter(self, name: str, directory: Path) -> None:
        self._loaded.add(name)

    def unload_adapter(self, name: str) -> None:
        self._loaded.discard(name)

    def loaded_adapters(self) -> frozenset[str]:
        return frozenset(self._loaded - {BASE})

    def fingerprint(self, name: str) -> str:
        return name

    def close(self) -> None: ...


class Nowhere(EventSink):
    """Takes events and forgets them."""

    def append(self, events: Sequence[ConversationEvent]) -> None: ...


class OneAdapter:
    """A registry with a single champion without weights."""

    name = "agent@1"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def fetch(self) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory

    def champion(self, role: Role) -> OneAdapter | None:
        return self if role is Role.AGENT else None


def sparring_app(settings: ServingSettings) -> FastAPI:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(resolve_base_model("bundled").path)
    source = OneAdapter(settings.state_dir / "champion")
    return create_app(settings, InstantEngine(tokenizer), AdapterSlots(Role.AGENT), Nowhere(), source)


def bare_app() -> FastAPI:
    """The least that FastAPI can do with such a request."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def answer(request: Request) -> dict[str, Any]:
        await request.json()
        return {"choices": [{"message": {"content": "Good day."}}], "usage": {"completion_tokens": 4}}

    return app


def main() -> None:
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    settings = ServingSettings(
        state_dir=folder,
        port=0,
        requests_per_minute=1_000_000,
        concurrent_requests=100_000,
        checkpoints_url=sys.argv[3] if len(sys.argv) > 3 else None,
    )
    listener = bind(settings.host, 0)
    app = sparring_app(settings) if kind == "sparring" else bare_app()
    with listener:
        serve(
            app,
            settings.host,
            0,
            listener=listener,
            shutdown_seconds=2,
            on_ready=lambda url: print(url, flush=True),
        )


if __name__ == "__main__":
    main()
