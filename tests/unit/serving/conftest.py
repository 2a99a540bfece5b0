"""A serving application around a scripted engine: everything but the model is the real thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from transformers import AutoTokenizer

from negotiation.catalogue import scenario_named
from negotiation.events import ConversationEvent
from negotiation.generation import BASE, AdapterNotLoaded, GenerationChunk, GenerationRequest, GenerationResult
from negotiation.roles import Role
from serving.app import create_app
from serving.auth import KeyStore
from serving.config import ServingSettings
from serving.engines import ReplicaStatus
from serving.slots import AdapterSlots


class ScriptedEngine:
    """Says what ``say`` returns for the request; holds adapters by name only."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.context_length = 512
        self.say: Callable[[GenerationRequest], str] = lambda request: "Good day."
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.requests: list[GenerationRequest] = []
        self._loaded: dict[str, Path | None] = {BASE: None}

    async def generate_async(self, request: GenerationRequest) -> GenerationResult:
        if request.adapter not in self._loaded:
            raise AdapterNotLoaded(f"adapter {request.adapter!r} is not loaded")
        self.requests.append(request)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        ids = self.tokenizer.encode(self.say(request) + "<|end|>", add_special_tokens=False)
        return GenerationResult(tuple(ids), tuple(-0.25 for _ in ids), "stop")

    async def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        """Token by token."""
        result = await self.generate_async(request)
        last = len(result.token_ids) - 1
        for place, (token, logprob) in enumerate(zip(result.token_ids, result.logprobs, strict=True)):
            yield GenerationChunk((token,), (logprob,), result.finish_reason if place == last else None)
            await asyncio.sleep(0)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        raise NotImplementedError

    def load_adapter(self, name: str, directory: Path) -> None:
        if not directory.is_dir():
            raise ValueError(f"{directory} is not a directory")
        self._loaded[name] = directory

    def unload_adapter(self, name: str) -> None:
        del self._loaded[name]

    def loaded_adapters(self) -> frozenset[str]:
        return frozenset(self._loaded) - {BASE}

    def fingerprint(self, name: str) -> str:
        return f"fingerprint of {name}"

    replicas: tuple[ReplicaStatus, ...] = ()

    def close(self) -> None: ...


@dataclass
class MemorySink:
    """Keeps each event id once, like the real logs; can be told to fail."""

    events: list[ConversationEvent] = field(default_factory=list)
    appended: int = 0
    failure: Exception | None = None

    def append(self, events: Sequence[ConversationEvent]) -> None:
        if self.failure is not None:
            raise self.failure
        known = {event.event_id for event in self.events}
        self.appended += len(events)
        self.events.extend(event for event in events if event.event_id not in known)

    def of(self, conversation_id: str) -> list[ConversationEvent]:
        return [event for event in self.events if event.conversation_id == conversation_id]


@dataclass
class DirectorySource:
    """The champion is whatever ``name`` says, its files an empty directory."""

    directory: Path
    name: str | None = "agent@1"

    @dataclass
    class Champion:
        name: str
        directory: Path

        def fetch(self) -> Path:
            self.directory.mkdir(parents=True, exist_ok=True)
            return self.directory

    def champion(self, role: Role) -> Champion | None:
        return None if self.name is None else self.Champion(self.name, self.directory / self.name)


@dataclass
class Shop:
    """One service under test, and what it stands on. ``client`` carries acme's key."""

    settings: ServingSettings
    engine: ScriptedEngine
    slots: AdapterSlots
    sink: MemorySink
    source: DirectorySource
    app: FastAPI
    client: httpx.AsyncClient
    keys: dict[str, str]

    def headers(self, who: str, **more: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[who]}", **more}

    def opening(
        self, seed: int = 1, first: Role = Role.AGENT, scenario: str = "telesales", **more: Any
    ) -> dict[str, Any]:
        context = scenario_named(scenario).generate(seed)
        return {
            "scenario": scenario,
            "context": {
                "public": context.public,
                "views": {"agent": context.views[Role.AGENT]},
                "first_speaker": str(first),
            },
            **more,
        }

    async def logged(self, conversation_id: str | None = None) -> list[ConversationEvent]:
        """The events that are in the log once everything queued was published."""
        relay = self.app.state.service.relay
        while self.sink.failure is None and await relay._outbox.oldest(1):
            await relay.publish()
        return list(self.sink.events) if conversation_id is None else self.sink.of(conversation_id)

    def cut_off(self, failing: bool) -> None:
        """Steps are kept in their checkpoint and never end: what a crash between the two leaves."""
        store = self.app.state.service.conversations._store
        if not failing:
            del store.finish, store.queue
            return

        async def fails(*values: Any, **more: Any) -> None:
            raise OSError("gone")

        store.finish = store.queue = fails

    async def open(self, seed: int = 1, first: Role = Role.AGENT, **more: Any) -> dict[str, Any]:
        response = await self.client.post("/v1/conversations", json=self.opening(seed, first, **more))
        assert response.status_code == 201, response.text
        return response.json()

    async def say(self, conversation_id: str, text: str, key: str | None = None) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.client.post(
            f"/v1/conversations/{conversation_id}/messages", json={"text": text}, headers=headers
        )


MakeShop = Callable[..., Any]


@pytest.fixture(scope="session")
def tokenizer(tiny_model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model_dir)


def build_shop(
    folder: Path,
    tokenizer: Any,
    sink: MemorySink | None = None,
    champion: str | None = "agent@1",
    tracer: Any = None,
    **changes: Any,
) -> Shop:
    """A service on ``folder``, not started."""
    settings = ServingSettings(**{"state_dir": folder, "max_tokens": 32, "reconcile_seconds": 60, **changes})
    keys = {}
    store = KeyStore(settings.keys_path)
    for who, scope in (("acme", "tenant"), ("rival", "tenant"), ("root", "admin")):
        keys[who] = store.create_key(who, scope)
    for who in ("acme", "rival"):
        keys[f"{who}'s boss"] = store.create_key(who, "admin")
    engine, slots = ScriptedEngine(tokenizer), AdapterSlots(Role.AGENT)
    sink = sink or MemorySink()
    source = DirectorySource(folder / "registry", champion)
    app = create_app(settings, engine, slots, sink, source, tracer)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {keys['acme']}"}
    client = httpx.AsyncClient(transport=transport, base_url="http://shop", headers=headers)
    return Shop(settings, engine, slots, sink, source, app, client, keys)


@pytest.fixture
def make_shop(tmp_path: Path, tokenizer: Any) -> MakeShop:
    """An async context manager that starts a service on ``tmp_path``; start it again to restart it."""

    @asynccontextmanager
    async def make(
        sink: MemorySink | None = None, champion: str | None = "agent@1", tracer: Any = None, **changes: Any
    ) -> AsyncIterator[Shop]:
        shop = build_shop(tmp_path, tokenizer, sink, champion, tracer, **changes)
        async with shop.app.router.lifespan_context(shop.app), shop.client:
            await shop.app.state.service.reconcile()
            yield shop

    return make


@pytest.fixture(scope="session")
def idle_shop(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Shop:
    """A service that is not started: for whoever runs the application on an event loop of its own."""
    limits: dict[str, Any] = {"requests_per_minute": 0, "failed_keys_per_minute": 0, "reconcile_seconds": 3600}
    limits["approval_above_price"] = 0
    return build_shop(tmp_path_factory.mktemp("idle-shop"), tokenizer, **limits)


@pytest.fixture
async def shop(make_shop: MakeShop) -> AsyncIterator[Shop]:
    async with make_shop() as running:
        yield running
