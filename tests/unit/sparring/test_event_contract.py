"""The published contract is the one that the code keeps, and a reader without our code can rely on it."""

from __future__ import annotations

import base64
import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from negotiation.event_log import DeadLetter
from negotiation.events import (
    SCHEMA_VERSION,
    Closed,
    ConversationEvent,
    Erased,
    Message,
    Offer,
    Opened,
    OutcomeReported,
    UnreadableEvent,
    read_event,
)
from pipelines.kafka_dead_letters import outgoing, tombstone
from sparring.event_contract import differing, documents
from sparring.event_contract.examples import conversation, dead_letter
from sparring.event_contract.schemas import KINDS

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "docs" / "events"
DOCUMENTS = {name: json.loads(text) for name, text in documents().items()}
EVENT = DOCUMENTS["conversation-event.schema.json"]
LETTER = DOCUMENTS["dead-letter.schema.json"]
ASYNCAPI = DOCUMENTS["asyncapi.json"]
EXAMPLES = [json.loads(event.model_dump_json()) for event in conversation()]

VERSION_1: list[dict[str, Any]] = [
    {
        "schema_version": 1,
        "tenant": "acme",
        "conversation_id": "c1",
        "sequence": 0,
        "occurred_at": "2025-11-03T10:00:00Z",
        "payload": {
            "type": "opened",
            "context": {"scenario": "telesales", "public": {}, "views": {"agent": {}}},
            "adapter": "agent@1",
        },
    },
    {
        "schema_version": 1,
        "tenant": "acme",
        "conversation_id": "c1",
        "sequence": 1,
        "occurred_at": "2025-11-03T10:00:09Z",
        "payload": {"type": "message", "role": "counterpart", "text": "Hello.", "shown": "Hello."},
    },
    {
        "schema_version": 1,
        "tenant": "acme",
        "conversation_id": "c1",
        "sequence": 2,
        "occurred_at": "2025-11-03T10:01:00Z",
        "payload": {"type": "closed", "reason": "walked_away"},
    },
]
"""As the first release wrote them: no adapter of the event, no consent, no tokens."""


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def test_what_is_committed_is_what_the_code_keeps() -> None:
    remedy = "run: python -m sparring.event_contract --output docs/events"
    assert differing(PUBLISHED) == {}, remedy


def test_the_command_writes_all_of_it_and_names_what_differs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sparring.event_contract", "--output", str(tmp_path / "events")]
    written = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert len(written.stdout.splitlines()) == len(DOCUMENTS)
    (tmp_path / "events" / "closed.schema.json").write_text("{}")
    (tmp_path / "events" / "offer.schema.json").unlink()
    checked = subprocess.run([*command, "--check"], capture_output=True, text=True, cwd=ROOT)
    assert checked.returncode == 1
    assert "closed.schema.json: out of date" in checked.stderr
    assert "offer.schema.json: missing" in checked.stderr


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name.endswith(".schema.json")])
def test_each_schema_is_one_and_refers_to_nothing_outside_itself(name: str) -> None:
    Draft202012Validator.check_schema(DOCUMENTS[name])
    assert all(reference.startswith("#/$defs/") for reference in references(DOCUMENTS[name]))


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event["payload"]["type"])
def test_an_event_is_valid_under_its_own_kind_and_no_other(event: dict[str, Any]) -> None:
    validator(EVENT).validate(event)
    valid = [kind for kind in KINDS if validator(DOCUMENTS[f"{kind}.schema.json"]).is_valid(event)]
    assert valid == [event["payload"]["type"]]


def test_there_is_an_example_of_every_kind() -> None:
    assert {event["payload"]["type"] for event in EXAMPLES} == set(KINDS)


TEXT = st.text(max_size=30)
EVENTS = st.builds(
    ConversationEvent,
    tenant=TEXT,
    conversation_id=TEXT,
    sequence=st.integers(0, 2**31),
    adapter=st.none() | TEXT,
    consent=st.booleans(),
    occurred_at=st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)),
    payload=st.one_of(
        st.builds(
            Opened, context=st.just(conversation()[0].payload.context), adapter=TEXT, customer=st.none() | TEXT
        ),  # type: ignore[union-attr]
        st.builds(Message, text=TEXT, shown=TEXT),
        st.builds(Offer),
        st.builds(Closed),
        st.builds(OutcomeReported, counterpart_view=st.none(), rewards=st.just({}), points=st.just({})),
        st.builds(Erased),
    ),
)


@given(event=EVENTS)
@settings(max_examples=60, deadline=None)
def test_whatever_is_written_is_valid(event: ConversationEvent) -> None:
    try:
        body = event.model_dump_json()
    except UnicodeEncodeError:
        return
    validator(EVENT).validate(json.loads(body, parse_constant=lambda constant: 0.0))


@pytest.mark.parametrize("event", VERSION_1, ids=lambda event: event["payload"]["type"])
def test_events_of_the_first_version_are_valid_and_read(event: dict[str, Any]) -> None:
    validator(EVENT).validate(event)
    read = read_event(json.dumps(event))
    assert (read.schema_version, read.consent) == (1, False)


def mutations() -> Iterator[tuple[str, dict[str, Any]]]:
    def changed(number: int, change: Any) -> dict[str, Any]:
        event = copy.deepcopy(EXAMPLES[number])
        change(event)
        return event

    yield "newer version", changed(0, lambda e: e.update(schema_version=SCHEMA_VERSION + 1))
    yield "version 0", changed(0, lambda e: e.update(schema_version=0))
    yield "no payload", changed(0, lambda e: e.pop("payload"))
    yield "no tenant", changed(0, lambda e: e.pop("tenant"))
    yield "no type", changed(0, lambda e: e["payload"].pop("type"))
    yield "unknown type", changed(0, lambda e: e["payload"].update(type="reopened"))
    yield "negative sequence", changed(0, lambda e: e.update(sequence=-1))
    yield "text for a number", changed(0, lambda e: e.update(sequence="first"))
    yield "no time", changed(0, lambda e: e.update(occurred_at="yesterday"))
    yield "unknown role", changed(1, lambda e: e["payload"].update(role="referee"))
    yield "no text", changed(1, lambda e: e["payload"].pop("text"))
    yield "tokens that are words", changed(1, lambda e: e["payload"].update(token_ids=["van"]))
    yield "unknown source", changed(0, lambda e: e["payload"].update(source="hearsay"))


@pytest.mark.parametrize(("name", "event"), [pytest.param(*case, id=case[0]) for case in mutations()])
def test_what_the_schema_refuses_the_reader_refuses_too(name: str, event: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        validator(EVENT).validate(event)
    with pytest.raises(UnreadableEvent):
        read_event(json.dumps(event))


def as_json(record: Any) -> dict[str, Any]:
    value = None if record.value is None else base64.b64encode(record.value).decode()
    return {
        "key": record.key.decode() if isinstance(record.key, bytes) else record.key,
        "headers": {name: text.decode() for name, text in record.headers},
        "value": value,
    }


def test_dead_letters_and_their_tombstones_are_as_published() -> None:
    letter = dead_letter()
    assert "newer than" in letter.reason
    validator(LETTER).validate(as_json(outgoing(letter)))
    validator(LETTER).validate(as_json(tombstone(letter, datetime.now(UTC))))
    huge = DeadLetter("r", letter.topic, 0, 1, letter.recorded_at, b"x" * 2_000_000)
    cut = as_json(outgoing(huge))
    validator(LETTER).validate(cut)
    assert len(cut["headers"]) == 6
    cut["headers"].popitem()
    cut["headers"].popitem()
    with pytest.raises(ValidationError):
        validator(LETTER).validate(cut)


def test_the_asyncapi_document_holds_together() -> None:
    assert ASYNCAPI["asyncapi"] == "3.0.0"
    for reference in references(ASYNCAPI):
        resolve(ASYNCAPI, reference)
    addresses = [channel["address"] for channel in ASYNCAPI["channels"].values()]
    assert addresses == ["sparring.conversations.v1", "sparring.dead-letter.v1", "sparring.adapters.v1"]
    for operation in ASYNCAPI["operations"].values():
        assert operation["action"] in ("send", "receive")
        channel = operation["channel"]["$ref"]
        assert operation["messages"]
        assert all(message["$ref"].startswith(f"{channel}/messages/") for message in operation["messages"])
    assert set(ASYNCAPI["components"]["messages"]) == {*KINDS, "setAside", "triedAgain"}


def test_the_examples_in_the_asyncapi_document_are_valid_under_its_schemas() -> None:
    for kind in KINDS:
        message = ASYNCAPI["components"]["messages"][kind]
        schema = {"$ref": f"#/components/messages/{kind}/payload", **ASYNCAPI}
        assert message["examples"]
        for example in message["examples"]:
            Draft202012Validator(schema).validate(example["payload"])


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for inner in node.values():
            yield from references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from references(inner)


def resolve(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for part in reference[2:].split("/"):
        document = document[part]
    return document


def test_the_example_of_the_docs_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code = (ROOT / "docs" / "events.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(code, "docs/events.md", "exec"), {})
