"""An engine around another one that measures replies and traces them: time to first token, whole time, failures.

What it asks of the engine inside, and what comes back, is not changed. Blocking :meth:`MeasuredEngine.generate` is
passed on unmeasured: serving answers nobody with it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from opentelemetry.trace import Span, SpanKind, Tracer

from negotiation.generation import (
    AdapterNotLoaded,
    Engine,
    GenerationChunk,
    GenerationRequest,
    GenerationResult,
    PromptTooLong,
    Tokenizer,
)
from serving.engines import EngineBusy, EngineClosed, EngineUnavailable, ReplicaStatus
from serving.log_context import conversation_id
from serving.metrics import ServiceMetrics
from serving.slots import AdapterHost
from serving.tracing import failed

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (asyncio.CancelledError, "cancelled"),
    (GeneratorExit, "cancelled"),
    (TimeoutError, "timeout"),
    (EngineBusy, "busy"),
    (EngineClosed, "closed"),
    (EngineUnavailable, "unavailable"),
    (AdapterNotLoaded, "adapter_not_loaded"),
    (PromptTooLong, "prompt_too_long"),
)


class ServingEngine(Engine, AdapterHost, Protocol):
    """An engine that can also prove what a loaded adapter answers, and tell of the servers behind it."""

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]: ...


@dataclass
class _Reply:
    """One request on its way."""

    request: GenerationRequest
    adapter: str
    span: Span
    start: float = field(default_factory=time.perf_counter)
    heard: bool = False
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class MeasuredEngine:
    """A ServingEngine. ``tracer`` gives the one of the moment; ``content``: put prompt and reply into the span."""

    def __init__(
        self,
        engine: ServingEngine,
        metrics: ServiceMetrics,
        tracer: Callable[[], Tracer],
        *,
        server_address: str,
        content: bool,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._tracer = tracer
        self._server_address = server_address
        self._content = content

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    @property
    def context_length(self) -> int:
        return self._engine.context_length

    async def generate_async(self, request: GenerationRequest) -> GenerationResult:
        with self._measured(request) as reply:
            result = await self._engine.generate_async(request)
            self._first(reply)
            reply.tokens.extend(result.token_ids)
            reply.finish_reason = result.finish_reason
        return result

    async def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        with self._measured(request) as reply:
            chunks = self._engine.stream(request)
            try:
                async for chunk in chunks:
                    if not reply.heard:
                        waited = time.perf_counter() - reply.start
                        self._metrics.first_token.labels(reply.adapter).observe(waited)
                    self._first(reply)
                    reply.tokens.extend(chunk.token_ids)
                    reply.finish_reason = chunk.finish_reason
                    yield chunk
            finally:
                # Leaving early must reach the engine now: a generator that is only dropped ends at some later time.
                if isinstance(chunks, AsyncGenerator):
                    await chunks.aclose()

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        return self._engine.replicas

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        return self._engine.generate(requests)

    def load_adapter(self, name: str, directory: Path) -> None:
        self._engine.load_adapter(name, directory)

    def unload_adapter(self, name: str) -> None:
        self._engine.unload_adapter(name)

    def loaded_adapters(self) -> frozenset[str]:
        return self._engine.loaded_adapters()

    def fingerprint(self, name: str) -> str:
        return self._engine.fingerprint(name)

    def close(self) -> None:
        self._engine.close()

    def _first(self, reply: _Reply) -> None:
        if not reply.heard:
            reply.heard = True
            self._metrics.queue_depth.dec()

    def _done(self, reply: _Reply) -> None:
        self._metrics.reply_seconds.labels(reply.adapter).observe(time.perf_counter() - reply.start)

    @contextmanager
    def _measured(self, request: GenerationRequest) -> Iterator[_Reply]:
        adapter = self._metrics.adapter_label(request.adapter)
        # Not made current: a stream may end in another task than it began in.
        span = self._tracer().start_span(f"chat {adapter}", kind=SpanKind.CLIENT)
        reply = _Reply(request, adapter, span)
        if span.is_recording():
            self._describe_request(reply)
        self._metrics.queue_depth.inc()
        self._metrics.replies_running.inc()
        try:
            yield reply
        except BaseException as error:
            if isinstance(error, GeneratorExit) and reply.finish_reason is not None:
                self._done(reply)  # whoever reads the last chunk need not ask for another
                raise
            reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "error")
            self._metrics.reply_failures.labels(adapter, reason).inc()
            failed(span, reason if reason != "error" else type(error).__name__)
            raise
        else:
            self._done(reply)
        finally:
            self._first(reply)
            self._metrics.replies_running.dec()
            if span.is_recording():
                self._describe_result(reply)
            span.end()

    def _describe_request(self, reply: _Reply) -> None:
        sampling = reply.request.sampling
        attributes: dict[str, str | int | float] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "sparring",
            "gen_ai.request.model": reply.adapter,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "server.address": self._server_address,
        }
        conversation = conversation_id.get()
        if conversation is not None:
            attributes["gen_ai.conversation.id"] = conversation
        if self._content:
            attributes["gen_ai.input.messages"] = self._message("user", reply.request.prompt_ids)
        reply.span.set_attributes(attributes)

    def _describe_result(self, reply: _Reply) -> None:
        reply.span.set_attributes(
            {
                "gen_ai.response.model": reply.adapter,
                "gen_ai.usage.input_tokens": len(reply.request.prompt_ids),
                "gen_ai.usage.output_tokens": len(reply.tokens),
            }
        )
        if reply.finish_reason is not None:
            reply.span.set_attribute("gen_ai.response.finish_reasons", [reply.finish_reason])
        if self._content:
            reply.span.set_attribute("gen_ai.output.messages", self._message("assistant", reply.tokens))

    def _message(self, role: str, token_ids: Sequence[int]) -> str:
        text = self._engine.tokenizer.decode(list(token_ids))
        return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
