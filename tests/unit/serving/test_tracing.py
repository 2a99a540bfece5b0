"""Spans: what they say of a request and its reply, whose child they are, and where they go."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer
from pydantic import ValidationError

from negotiation.roles import Role
from serving.config import ServingSettings
from serving.tracing import NO_TRACES, open_tracing, tracer_to


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> Iterator[Tracer]:
    with tracer_to(SimpleSpanProcessor(spans), "here") as tracer:
        yield tracer


def named(spans: InMemorySpanExporter, name: str):
    return [span for span in spans.get_finished_spans() if span.name == name]


async def test_a_reply_carries_the_genai_attributes_and_no_text(make_shop, tracer, spans):
    async with make_shop(tracer=tracer) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        await shop.say(opened["id"], "Any blue ones?")
        [request] = shop.engine.requests
        [reply] = named(spans, "chat agent@1")
        attributes = dict(reply.attributes)
        host = attributes.pop("server.address")
        assert host
        assert attributes == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "sparring",
            "gen_ai.request.model": "agent@1",
            "gen_ai.request.max_tokens": 32,
            "gen_ai.request.temperature": 1.0,
            "gen_ai.conversation.id": opened["id"],
            "gen_ai.response.model": "agent@1",
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.input_tokens": len(request.prompt_ids),
            "gen_ai.usage.output_tokens": len(shop.engine.tokenizer.encode("Good day.<|end|>")),
        }
        [asked] = named(spans, "POST /v1/conversations/{conversation_id}/messages")
        assert reply.parent.span_id == asked.context.span_id
        assert dict(asked.attributes) == {
            "http.request.method": "POST",
            "http.route": "/v1/conversations/{conversation_id}/messages",
            "http.response.status_code": 200,
            "url.scheme": "http",
            "server.address": "shop",
        }


async def test_content_is_in_a_span_only_when_asked_for(make_shop, tracer, spans):
    async with make_shop(tracer=tracer, traces_message_content=True) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        await shop.say(opened["id"], "Any blue ones?")
        [reply] = named(spans, "chat agent@1")
        [asked] = json.loads(reply.attributes["gen_ai.input.messages"])
        assert (asked["role"], asked["parts"][0]["type"]) == ("user", "text")
        assert "Any blue ones?" in asked["parts"][0]["content"]
        [said] = json.loads(reply.attributes["gen_ai.output.messages"])
        assert "Good day." in said["parts"][0]["content"]


async def test_failures_are_marked_by_kind_alone(make_shop, tracer, spans):
    async with make_shop(tracer=tracer) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        shop.engine.failure = RuntimeError("he said: blue")
        assert (await shop.say(opened["id"], "Blue?")).status_code == 500
        for span in (
            *named(spans, "chat agent@1"),
            *named(spans, "POST /v1/conversations/{conversation_id}/messages"),
        ):
            assert span.status.status_code is StatusCode.ERROR
            assert span.status.description is None
            assert span.attributes["error.type"] == "RuntimeError"
            assert span.events == ()


async def test_the_callers_trace_goes_on(make_shop, tracer, spans):
    async with make_shop(tracer=tracer) as shop:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await shop.client.get("/livez", headers={"traceparent": parent})
        [span] = named(spans, "GET /livez")
        assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
        assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
        await shop.client.get("/livez", headers={"traceparent": "nonsense"})
        assert named(spans, "GET /livez")[1].parent is None


def test_without_an_endpoint_nothing_is_recorded():
    with open_tracing(ServingSettings(), "here") as tracer:
        assert tracer is NO_TRACES
        assert not tracer.start_span("anything").is_recording()


def test_spans_go_to_the_configured_endpoint_whatever_the_environment_says(monkeypatch):
    received = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1/elsewhere")
    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        with open_tracing(ServingSettings(traces_endpoint=endpoint), "replica-7") as tracer:
            tracer.start_span("a span").end()
        server.shutdown()
    [(path, body)] = received
    assert path == "/v1/traces"
    assert b"a span" in body
    assert b"replica-7" in body


@pytest.mark.parametrize("endpoint", ["collector:4318", "http://collector:4318", "ftp://collector/v1/traces"])
def test_an_endpoint_without_scheme_or_path_is_refused(endpoint):
    with pytest.raises(ValidationError, match="traces_endpoint"):
        ServingSettings(traces_endpoint=endpoint)
