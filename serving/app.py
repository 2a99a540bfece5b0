"""The HTTP application, put together from what it is given: engine, adapter slots, event sink, registry.

Starting: take the state directory, finish what a crash left unfinished, load and pin the adapters of open
conversations, then serve. It reads no environment and builds no model: ``sparring`` does that. Run it with
:func:`serving.server.serve`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict

from fastapi import FastAPI
from filelock import FileLock, Timeout
from opentelemetry.trace import Tracer

from negotiation.authority import ApprovalRule
from negotiation.event_log import EventSink
from serving import openai_routes, page_routes, routes
from serving.admission import Admission
from serving.auth import KeyStore
from serving.completions import Completions
from serving.config import ServingSettings
from serving.conversations import Conversations
from serving.desired import AdapterSource
from serving.errors import install_error_handlers
from serving.flow import Flow
from serving.kept_adapters import KeptAdapters, kept_directory
from serving.measured_engine import MeasuredEngine, ServingEngine
from serving.metrics import ServiceMetrics
from serving.middleware import BodyLimit, HeaderLimit, Measure
from serving.outbox import Outbox
from serving.rate_limits import RateLimits
from serving.redaction import Redactor
from serving.relay import Relay
from serving.request_ids import RequestIds
from serving.room import Room
from serving.schemas import AdaptersShown, ReplicaShown
from serving.slots import AdapterSlots, LoadFailure, ensure_loaded, reconcile
from serving.storage import open_storage
from serving.tracing import NO_TRACES, TraceRequests, open_tracing
from serving.upkeep import every

log = logging.getLogger("serving")

UPKEEP_SECONDS = 10.0


class StateInUse(RuntimeError):
    """Another process serves from this state directory."""


class SparringService:
    """The running service: what the endpoints act on."""

    def __init__(
        self,
        settings: ServingSettings,
        engine: ServingEngine,
        slots: AdapterSlots,
        sink: EventSink,
        source: AdapterSource | None,
        tracer: Tracer | None,
    ) -> None:
        self.settings = settings
        self.keys = KeyStore(settings.keys_path)
        self.limits = RateLimits(
            requests_per_minute=settings.requests_per_minute,
            concurrent_requests=settings.concurrent_requests,
            failed_keys_per_minute=settings.failed_keys_per_minute,
        )
        self.metrics = ServiceMetrics(lambda: slots.pinned, lambda: slots.held, lambda: engine.replicas)
        self.tracer = NO_TRACES
        self._given_tracer = tracer
        self.conversations: Conversations
        self.completions: Completions
        self.relay: Relay
        self._engine = MeasuredEngine(
            engine,
            self.metrics,
            lambda: self.tracer,
            server_address=socket.gethostname(),
            content=settings.traces_message_content,
        )
        self._slots = slots
        self._sink = sink
        self._source = None if source is None else KeptAdapters(source, settings.adapters_dir)
        self._started = False
        self._reconciling = asyncio.Lock()
        self._last_failure: LoadFailure | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open everything, recover, and keep the upkeep going until left."""
        settings = self.settings
        async with AsyncExitStack() as stack:
            stack.enter_context(_sole_use(settings))
            self.tracer = self._given_tracer or stack.enter_context(open_tracing(settings, socket.gethostname()))
            flow = Flow(
                self._engine,
                max_tokens=settings.max_tokens,
                temperature=settings.temperature,
                timeout_seconds=settings.reply_timeout_seconds,
                approval=ApprovalRule(
                    above_price=settings.approval_above_price, below_margin=settings.approval_below_margin
                ),
                redactor=Redactor(settings.redaction),
            )
            storage = await stack.enter_async_context(
                open_storage(settings, flow.graph(), self.metrics.observe_checkpoint)
            )
            self.relay = Relay(Outbox(storage.store), self._sink, storage.leases, self.metrics)
            stack.push_async_callback(self.relay.close)
            stack.push_async_callback(_stop, asyncio.create_task(self.relay.run(), name="relay"))
            admission = Admission(settings.max_waiting)
            self.conversations = Conversations(
                settings,
                self._slots,
                storage.checkpoints,
                storage.store,
                self.relay,
                self.metrics,
                self._load_again,
                storage.leases,
                admission,
                Room(
                    settings.state_dir,
                    min_free_bytes=settings.min_free_bytes,
                    max_outbox_events=settings.max_outbox_events,
                    backlog=lambda: self.relay.backlog,
                ),
            )
            self.completions = Completions(
                settings, self._engine, self._slots, admission, storage.store, self.metrics
            )
            stack.push_async_callback(self.conversations.drain)
            await self.conversations.recover()
            self._started = True
            for name, seconds, work in (
                ("reconcile", settings.reconcile_seconds, self.reconcile),
                ("expire", UPKEEP_SECONDS, self.conversations.expire),
                ("upkeep", UPKEEP_SECONDS, self.conversations.upkeep),
            ):
                task = asyncio.create_task(every(seconds, name, work, self.metrics), name=name)
                stack.push_async_callback(_stop, task)
            yield
            self._started = False

    async def reconcile(self) -> None:
        """Bring the adapter in service to the one the registry calls champion. Raises what the registry raises."""
        if self._source is None:
            return
        async with self._reconciling:
            start = time.perf_counter()
            report = await asyncio.to_thread(reconcile, self._source, self._engine, self._slots)
            seconds = time.perf_counter() - start
        if report.switched:
            self.metrics.swaps.inc()
            self.metrics.swap_seconds.labels("switched").observe(seconds)
            log.info("adapter in service", extra={"adapter": report.current, "unloaded": report.unloaded})
        if report.failure is not None and report.failure != self._last_failure:
            self.metrics.swap_failures.inc()
            self.metrics.swap_seconds.labels("failed").observe(seconds)
            log.error("adapter refused", extra={"adapter": report.failure.name, "why": report.failure.reason})
        self._last_failure = report.failure

    def adapters(self) -> AdaptersShown:
        """What is loaded, what new conversations get, and what open ones are pinned to."""
        return AdaptersShown(
            current=self._slots.current,
            loaded=tuple(sorted(self._engine.loaded_adapters())),
            pinned=self._slots.pinned,
            failed={failure.name: failure.reason for failure in self._slots.failures},
            replicas=tuple(ReplicaShown(**asdict(replica)) for replica in self._engine.replicas),
        )

    def not_ready(self) -> list[str]:
        """Why conversations can not be opened now; empty when they can."""
        if not self._started:
            return ["the service is starting or stopping"]
        current = self._slots.current
        if current is None:
            refused = [f"{failure.name} was refused: {failure.reason}" for failure in self._slots.failures]
            return refused or ["no adapter is in service: the registry names no champion yet"]
        if current not in self._engine.loaded_adapters():
            down = [f"{replica.url} is down: {replica.reason}" for replica in self._engine.replicas if replica.reason]
            return [f"adapter {current} is not loaded", *down]
        return []

    def _load_again(self, name: str) -> None:
        ensure_loaded(self._engine, self._slots, name, kept_directory(self.settings.adapters_dir, name))


def create_app(
    settings: ServingSettings,
    engine: ServingEngine,
    slots: AdapterSlots,
    sink: EventSink,
    source: AdapterSource | None = None,
    tracer: Tracer | None = None,
) -> FastAPI:
    """The application. The caller keeps, and closes, what it handed in. ``tracer`` stands in for the settings'."""
    service = SparringService(settings, engine, slots, sink, source, tracer)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="Sparring",
        summary="Negotiation agents that learn from the conversations they have.",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.service = service
    app.include_router(routes.conversations)
    app.include_router(openai_routes.openai)
    app.include_router(routes.admin)
    app.include_router(routes.health)
    app.include_router(page_routes.scenarios)
    app.include_router(page_routes.page)
    install_error_handlers(app)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    app.add_middleware(HeaderLimit, limit=settings.max_headers)
    app.add_middleware(Measure, metrics=service.metrics)
    app.add_middleware(TraceRequests, tracer=lambda: service.tracer)
    app.add_middleware(RequestIds)
    return app


@contextmanager
def _sole_use(settings: ServingSettings) -> Iterator[None]:
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(settings.state_dir / "serving.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise StateInUse(
            f"{settings.state_dir} is in use by another service: stop it, or choose another state_dir"
        ) from error
    try:
        yield
    finally:
        lock.release()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
