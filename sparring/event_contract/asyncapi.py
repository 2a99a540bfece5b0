"""The AsyncAPI 3.0 document: which topics there are, what is sent to them and by whom, and how they are set up.

Its schemas are those of :mod:`sparring.event_contract.schemas` in the dialect that AsyncAPI's tools must know (a
superset of JSON Schema draft-07). Topic settings are the defaults of ``[pipelines.kafka]``, which ``sparring topics``
applies. Left out: servers, which are the operator's own.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from negotiation.events import (
    ADAPTERS_TOPIC,
    CONVERSATIONS_TOPIC,
    DEAD_LETTER_TOPIC,
    SCHEMA_VERSION,
    ConversationEvent,
)
from pipelines.config import KafkaSettings
from pipelines.kafka_connection import CLIENT_ID, MAX_RECORD_BYTES
from pipelines.kafka_dead_letters import outgoing
from pipelines.kafka_topics import Topic, wanted_topics
from sparring.event_contract.dead_letters import (
    KEY,
    SET_ASIDE,
    SET_ASIDE_HEADERS,
    TRIED_AGAIN,
    TRIED_AGAIN_HEADERS,
)
from sparring.event_contract.examples import conversation, dead_letter
from sparring.event_contract.schemas import KINDS, definitions

BINDING_VERSION = "0.5.0"
GROUP = "^dataset-[0-9a-f]{8}$"
_CONVERSATIONS, _DEAD_LETTERS, _ADAPTERS = "conversations", "deadLetters", "adapters"
_EVENT_KEY = {"type": "string", "description": "The conversation id: a conversation's events share a partition."}


def asyncapi() -> dict[str, Any]:
    """The document as JSON values."""
    settings = KafkaSettings(bootstrap_servers="localhost:9092")
    topics = {topic.name: topic for topic in wanted_topics(settings)}
    kinds = list(KINDS)
    letters = ["setAside", "triedAgain"]
    return {
        "asyncapi": "3.0.0",
        "id": "urn:sparring:events",
        "info": {
            "title": "Sparring conversation events",
            "version": f"{SCHEMA_VERSION}.0.0",
            "description": "What the service publishes of every conversation, and what is set aside of it.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            _CONVERSATIONS: _channel(
                topics[CONVERSATIONS_TOPIC],
                "Every step of every conversation. In order within a conversation; the same event may come twice, "
                f"and is known by its `event_id`. An event has {MAX_RECORD_BYTES:,} bytes at the most.",
                kinds,
            ),
            _DEAD_LETTERS: _channel(
                topics[DEAD_LETTER_TOPIC],
                "Records of the conversations that could not be read, until they are tried again.",
                letters,
            ),
            _ADAPTERS: _channel(
                topics[ADAPTERS_TOPIC], "Reserved: made with the others, and nothing is published to it.", []
            ),
        },
        "operations": {
            "publishConversationEvents": _operation(
                "send", _CONVERSATIONS, kinds, "The service's relay publishes what its outbox holds.", "serving"
            ),
            "replayConversationEvents": _operation(
                "send", _CONVERSATIONS, kinds, "`sparring replay` publishes a recorded corpus.", "pipelines"
            ),
            "retryConversationEvents": _operation(
                "send",
                _CONVERSATIONS,
                kinds,
                "`sparring dead-letter retry` appends what can be read now.",
                "pipelines",
            ),
            "readConversationEvents": _operation(
                "receive", _CONVERSATIONS, kinds, "The worker reads events into the dataset.", "pipelines", group=True
            ),
            "setAsideUnreadableEvents": _operation(
                "send", _DEAD_LETTERS, letters[:1], "The worker sets aside what it can not read.", "pipelines"
            ),
            "forgetDeadLetters": _operation(
                "send",
                _DEAD_LETTERS,
                letters[1:],
                "`sparring dead-letter retry` marks what it appended.",
                "pipelines",
            ),
            "readDeadLetters": _operation(
                "receive", _DEAD_LETTERS, letters, "`sparring dead-letter list` and `show` read them.", "pipelines"
            ),
        },
        "components": {
            "messages": {**{kind: _event_message(kind) for kind in kinds}, **_letter_messages()},
            "schemas": _schemas(),
        },
    }


def _channel(topic: Topic, description: str, messages: list[str]) -> dict[str, Any]:
    # The binding wants cleanup policies as a list, and numbers as numbers.
    config: dict[str, Any] = {key: int(v) if v.isdecimal() else v for key, v in topic.config.items()}
    config["cleanup.policy"] = topic.config["cleanup.policy"].split(",")
    return {
        "address": topic.name,
        "description": description,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "replicas": topic.replication_factor,
                "topicConfiguration": config,
                "bindingVersion": BINDING_VERSION,
            }
        },
    }


def _operation(
    action: str, channel: str, messages: list[str], summary: str, part: str, *, group: bool = False
) -> dict[str, Any]:
    binding: dict[str, Any] = {"clientId": {"type": "string", "const": CLIENT_ID}, "bindingVersion": BINDING_VERSION}
    if group:
        binding["groupId"] = {"type": "string", "pattern": GROUP, "description": "One for each dataset's folder."}
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "tags": [{"name": part}],
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
        "bindings": {"kafka": dict(sorted(binding.items()))},
    }


def _schemas() -> dict[str, Any]:
    found = definitions("#/components/schemas/{model}")
    return {name: found[name] for name in sorted(found)}


def _event_message(kind: str) -> dict[str, Any]:
    name = KINDS[kind]
    described = _schemas()[name]["description"]
    examples = [event for event in conversation() if event.payload.type == kind]
    return {
        "name": kind,
        "title": name,
        "summary": described.split("\n\n")[0],
        "contentType": "application/json",
        "payload": {
            "allOf": [
                {"$ref": f"#/components/schemas/{ConversationEvent.__name__}"},
                {"type": "object", "properties": {"payload": {"$ref": f"#/components/schemas/{name}"}}},
            ]
        },
        "bindings": _key(_EVENT_KEY),
        "examples": [
            {"name": f"{kind}{event.sequence}", "payload": json.loads(event.model_dump_json())} for event in examples
        ],
    }


def _letter_messages() -> dict[str, Any]:
    record = outgoing(dead_letter())
    assert record.value is not None, "a letter has a body"
    headers = {name: value.decode() for name, value in record.headers}
    body = (
        "The record's own bytes, whatever they are; in the example in Base64. A customer's words may be among them."
    )
    return {
        "setAside": {
            "name": "setAside",
            "title": "Dead letter",
            "summary": SET_ASIDE,
            "contentType": "application/octet-stream",
            "headers": SET_ASIDE_HEADERS,
            "payload": {"type": "string", "format": "binary", "description": body},
            "bindings": _key(KEY),
            "examples": [
                {"name": "newerVersion", "headers": headers, "payload": base64.b64encode(record.value).decode()}
            ],
        },
        "triedAgain": {
            "name": "triedAgain",
            "title": "Tombstone of a dead letter",
            "summary": TRIED_AGAIN,
            "headers": TRIED_AGAIN_HEADERS,
            "payload": {"type": "null"},
            "bindings": _key(KEY),
        },
    }


def _key(schema: dict[str, Any]) -> dict[str, Any]:
    return {"kafka": {"key": schema, "bindingVersion": BINDING_VERSION}}
