"""The service on the bundled model as its own process, with a brake on its engine.

Run: ``python loopback_service.py STATE_DIR [TRUSTED_PROXY]``. Prints its address once it accepts connections. A reply
(or, streaming, its second token) waits until there is a file ``STATE_DIR/go``. It prints ``begun`` when one begins
and ``ended`` when it is over, finished or cancelled.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from negotiation.adapter import AdapterName
from negotiation.generation import GenerationChunk, GenerationRequest, GenerationResult
from negotiation.roles import Role
from pipelines.event_log import SqliteEventLog
from serving.app import create_app
from serving.config import ServingSettings
from serving.engines.in_process import InProcessEngine
from serving.server import bind, log_json, serve
from serving.slots import AdapterSlots
from sparring.compose import base_reference
from sparring.models import ResolvedModel, resolve_base_model
from training.artifacts import initialise_adapter
from training.config import AdapterSettings


@dataclass(frozen=True)
class FreshAdapter:
    """A registry with a single champion, which changes nothing."""

    model: ResolvedModel
    directory: Path
    name: str = "agent@1"

    def champion(self, role: Role) -> FreshAdapter:
        return self

    def fetch(self) -> Path:
        if not self.directory.is_dir():
            base = base_reference(self.model)
            initialise_adapter(base, AdapterName.parse(self.name), AdapterSettings(), 1, self.directory)
        return self.directory


class BrakedEngine(InProcessEngine):
    """Answers when it is let, and token by token where it is asked to stream."""

    go: Path

    async def let_go(self) -> None:
        while not self.go.exists():
            await asyncio.sleep(0.01)

    async def generate_async(self, request: GenerationRequest) -> GenerationResult:
        print("begun", flush=True)
        try:
            await self.let_go()
            return await super().generate_async(request)
        finally:
            print("ended", flush=True)

    async def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        print("begun", flush=True)
        try:
            result = await super().generate_async(request)
            last = len(result.token_ids) - 1
            for place, (token, logprob) in enumerate(zip(result.token_ids, result.logprobs, strict=True)):
                if place:
                    await self.let_go()
                yield GenerationChunk((token,), (logprob,), result.finish_reason if place == last else None)
        finally:
            print("ended", flush=True)


def main() -> None:
    state_dir = Path(sys.argv[1])
    log_json()
    listener = bind("127.0.0.1", 0)
    settings = ServingSettings(state_dir=state_dir, reconcile_seconds=1, failed_keys_per_minute=3)
    model = resolve_base_model("bundled")
    engine = BrakedEngine(model.path, model.sha256, max_adapters=4, max_batch=32, threads=1)
    engine.go = state_dir / "go"
    sink = SqliteEventLog(state_dir / "events.db")
    source = FreshAdapter(model, state_dir / "registry" / "agent@1")
    app = create_app(settings, engine, AdapterSlots(Role.AGENT), sink, source)
    serve(
        app,
        "127.0.0.1",
        0,
        listener=listener,
        trusted_proxies=sys.argv[2:],
        on_ready=lambda url: print(url, flush=True),
    )
    sink.close()
    engine.close()


if __name__ == "__main__":
    main()
