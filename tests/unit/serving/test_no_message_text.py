"""What customers write is in no log line, metric or span, whatever fails; every record of a request has its ids."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from negotiation.roles import Role
from serving.log_context import LogContext, enter_conversation, log_scope, request_id
from serving.server import JsonLines, log_json
from serving.tracing import tracer_to

CANARY = "kanarienvogel"
TEXT = f"My name is {CANARY} [{CANARY} 7]"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """All that the service logs at DEBUG, as it would appear on standard error."""
    kept = {}
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            kept[name] = (logger.handlers, logger.propagate, logger.level)
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    log_json(logging.DEBUG)
    yield stream
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            logger.handlers, logger.propagate, level = kept.get(name, ([], True, logging.NOTSET))
            logger.setLevel(level)


async def test_a_conversation_full_of_failures_leaves_no_word_of_the_customer(make_shop, lines, tmp_path):
    spans = InMemorySpanExporter()
    with tracer_to(SimpleSpanProcessor(spans), "here") as tracer:
        async with make_shop(tracer=tracer, reply_timeout_seconds=0.05) as shop:
            opened = await shop.open(first=Role.COUNTERPART)
            statuses = [(await shop.say(opened["id"], TEXT)).status_code]
            for failure in (RuntimeError(TEXT), ValueError(TEXT), OSError(5, TEXT), sqlite3.OperationalError(TEXT)):
                shop.engine.failure = failure
                statuses.append((await shop.say(opened["id"], TEXT)).status_code)
            shop.engine.failure = None
            shop.engine.gate.clear()
            statuses.append((await shop.say(opened["id"], TEXT)).status_code)
            shop.engine.gate.set()
            shop.sink.failure = RuntimeError(TEXT)
            statuses.append((await shop.say(opened["id"], TEXT)).status_code)
            await asyncio.sleep(0.2)
            shop.sink.failure = None
            statuses.append((await shop.client.post(f"/v1/{CANARY}", json={"text": TEXT})).status_code)
            statuses.append((await shop.say(f"conv_{CANARY}", TEXT)).status_code)
            statuses.append((await shop.say(opened["id"], f"{CANARY} <|end|>")).status_code)
            assert statuses == [200, 500, 500, 500, 503, 503, 200, 404, 404, 422]
            asked = {"model": "sparring-agent", "messages": [{"role": "user", "content": TEXT}]}
            for failure in (None, RuntimeError(TEXT)):
                shop.engine.failure = failure
                answer = await shop.client.post("/v1/chat/completions", json=asked)
                assert answer.status_code == (200 if failure is None else 500)
            shop.source.champion = lambda role: (_ for _ in ()).throw(RuntimeError(TEXT))
            await shop.client.post("/admin/reconcile", headers=shop.headers("root"))
            metrics = (await shop.client.get("/metrics")).text
    written = lines.getvalue()
    logged = [json.loads(line) for line in written.splitlines()]
    assert {"request failed", "step", "events wait in the outbox", "the registry failed"} <= {
        line["message"] for line in logged
    }
    for line in logged:
        if line["message"] == "step" or (
            line["message"] == "request failed" and "{conversation_id}" in line["route"]
        ):
            assert line["conversation_id"] == opened["id"]
        if line["message"] in {"step", "request failed", "completion"}:
            assert line["request_id"].startswith("req_")
    seen = [span.to_json() for span in spans.get_finished_spans()]
    assert len(seen) > 10
    for place, text in (("log", written), ("metrics", metrics), ("spans", "".join(seen))):
        assert CANARY not in text, place


def formatted(work) -> dict[str, object]:
    """The one line that ``work`` logs."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(LogContext())
    logger = logging.Logger("apart")
    logger.addHandler(handler)
    work(logger)
    return json.loads(stream.getvalue())


@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=12))
def test_an_exception_is_logged_by_kind_and_place_and_without_its_words(words):
    def fail() -> None:
        try:
            raise ValueError(words)
        except ValueError as cause:
            raise FileNotFoundError(2, words) from cause

    def work(logger: logging.Logger) -> None:
        try:
            fail()
        except OSError:
            logger.exception("it failed")

    line = formatted(work)
    assert words not in str(line["exception"]).replace(__file__, "")
    assert "builtins.FileNotFoundError (ENOENT)" in line["exception"]
    assert "builtins.ValueError" in line["exception"]
    assert "in fail" in line["exception"]


def test_a_record_carries_both_ids_of_its_task_alone():
    identity = "conv_" + "0" * 32

    def work(logger: logging.Logger) -> None:
        with log_scope():
            request_id.set("req_1")
            enter_conversation(identity)
            logger.warning("inside")

    line = formatted(work)
    assert (line["request_id"], line["conversation_id"]) == ("req_1", identity)
    after = formatted(lambda logger: logger.warning("outside"))
    assert not {"request_id", "conversation_id"} & after.keys()


async def test_ids_of_requests_at_once_do_not_mix():
    seen = {}

    async def one(number: int) -> None:
        with log_scope():
            identity = f"conv_{number:032x}"
            request_id.set(f"req_{number}")
            enter_conversation(identity)
            await asyncio.sleep(0)
            line = formatted(lambda logger: logger.warning("hm"))
            seen[number] = (line["request_id"], line["conversation_id"] == identity)

    await asyncio.gather(*(one(number) for number in range(5)))
    assert seen == {number: (f"req_{number}", True) for number in range(5)}


@given(st.text(max_size=60))
def test_only_ids_that_the_service_made_are_logged(text):
    with log_scope():
        enter_conversation(text)
        line = formatted(lambda logger: logger.warning("hm"))
    assert "conversation_id" not in line


def test_the_kafka_client_is_not_heard_below_warning(lines):
    """At DEBUG it writes the values of records and the password that it logs in with."""
    client = logging.getLogger("kafka.producer.kafka")
    client.debug("Sending ProducerRecord(value=%s)", CANARY)
    client.warning("the broker is away")
    assert CANARY not in lines.getvalue()
    assert "the broker is away" in lines.getvalue()
