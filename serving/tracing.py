"""OpenTelemetry spans for requests and replies, sent by OTLP/HTTP to where the settings say; none without.

Attributes follow the HTTP and the GenAI semantic conventions. No message text, no path and no header is in a span
unless ``traces_message_content`` is on. The provider is this service's own and not the process's global one; what
the settings leave open, such as headers for the receiver, the SDK takes from its OTEL_* variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import NoOpTracer, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.config import ServingSettings
from serving.log_context import enter_request
from serving.metrics import METHODS

NO_TRACES: Tracer = NoOpTracer()
_TRACEPARENT = TraceContextTextMapPropagator()


@contextmanager
def open_tracing(settings: ServingSettings, instance: str) -> Iterator[Tracer]:
    """The tracer that the settings ask for. Leaving sends what is waiting."""
    if settings.traces_endpoint is None:
        yield NO_TRACES
        return
    with tracer_to(BatchSpanProcessor(OTLPSpanExporter(settings.traces_endpoint)), instance) as tracer:
        yield tracer


@contextmanager
def tracer_to(processor: SpanProcessor, instance: str) -> Iterator[Tracer]:
    """A tracer whose spans go to the processor."""
    resource = Resource({SERVICE_NAME: "sparring", SERVICE_INSTANCE_ID: instance})
    provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    try:
        yield provider.get_tracer("sparring")
    finally:
        provider.shutdown()


def failed(span: Span, kind: str) -> None:
    """Mark a span as failed, by the kind of error alone: its words may quote a message."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


class TraceRequests:
    """ASGI middleware: a span for each request, child of the caller's if it sent a ``traceparent``."""

    def __init__(self, app: ASGIApp, tracer: Callable[[], Tracer]) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        enter_request()
        tracer = self._tracer()
        if tracer is NO_TRACES:
            await self._app(scope, receive, send)
        else:
            await self._traced(tracer, scope, receive, send)

    async def _traced(self, tracer: Tracer, scope: Scope, receive: Receive, send: Send) -> None:
        sent = Headers(scope=scope).get("traceparent", "")
        parent = _TRACEPARENT.extract({"traceparent": sent}, context=Context())
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        span = tracer.start_span(method, context=parent, kind=SpanKind.SERVER)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    failed(span, str(status))
            await send(message)

        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            span.set_attributes({"http.request.method": method, "url.scheme": scope["scheme"]})
            if scope.get("server"):
                address, port = scope["server"]
                span.set_attributes({"server.address": address, **({} if port is None else {"server.port": port})})
            try:
                await self._app(scope, receive, watched)
            except BaseException as error:
                failed(span, type(error).__name__)
                raise
            finally:
                route = getattr(scope.get("route"), "path", None)
                if route is not None:
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)
