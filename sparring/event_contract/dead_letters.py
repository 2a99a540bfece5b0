"""JSON Schema 2020-12 of a record of the dead-letter topic, headers included.

Kafka's records are bytes. The schema is of a record written down as JSON: ``key`` and the headers' values as UTF-8
text, ``value`` in Base64, for it holds whatever was in the record that nobody could read.
"""

from __future__ import annotations

from typing import Any

from negotiation.events import CONVERSATIONS_TOPIC, DEAD_LETTER_TOPIC
from pipelines.kafka_dead_letters import (
    CUT_FROM,
    MAX_LETTER_BYTES,
    REASON,
    RECORDED_AT,
    RETRIED_AT,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SOURCE_TOPIC,
)
from sparring.event_contract.schemas import DIALECT, identifier

_NUMBER = "^[0-9]+$"
_TIME = {"type": "string", "format": "date-time"}

KEY: dict[str, Any] = {
    "type": "string",
    "pattern": f"^{CONVERSATIONS_TOPIC.replace('.', '[.]')}/[0-9]+/[0-9]+$",
    "description": "Topic, partition and offset of the record that was set aside: the same however often it is.",
}
SET_ASIDE_HEADERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        REASON: {"type": "string", "description": "Why, with none of the record's words."},
        SOURCE_TOPIC: {"const": CONVERSATIONS_TOPIC, "description": "Where the record is."},
        SOURCE_PARTITION: {"type": "string", "pattern": _NUMBER, "description": "Its partition, a decimal number."},
        SOURCE_OFFSET: {"type": "string", "pattern": _NUMBER, "description": "Its offset, a decimal number."},
        RECORDED_AT: {**_TIME, "description": "When it was set aside, UTC."},
        CUT_FROM: {
            "type": "string",
            "pattern": _NUMBER,
            "description": f"Only where value and headers would be over {MAX_LETTER_BYTES:,} bytes: how many bytes "
            "the record had, of which the value is the beginning.",
        },
    },
    "required": [REASON, SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET, RECORDED_AT],
}
TRIED_AGAIN_HEADERS: dict[str, Any] = {
    "type": "object",
    "properties": {RETRIED_AT: {**_TIME, "description": "When it was appended to the conversations again, UTC."}},
    "required": [RETRIED_AT],
}
SET_ASIDE = "A record that is no event of a known version, or that contradicts others: its bytes, and why."
TRIED_AGAIN = (
    "A tombstone: the record under this key was appended to the conversations again, and is no longer set aside."
)


def dead_letter_schema() -> dict[str, Any]:
    """A record of the topic: one that was set aside, or the tombstone of one that was tried again."""
    value = {
        "type": "string",
        "contentEncoding": "base64",
        "description": "The record's own bytes. A customer's words may be among them.",
    }
    return {
        "$schema": DIALECT,
        "$id": identifier("dead-letter"),
        "title": f"Record of {DEAD_LETTER_TOPIC}",
        "description": "Key and headers as text, the value in Base64.",
        "oneOf": [{"$ref": "#/$defs/SetAside"}, {"$ref": "#/$defs/TriedAgain"}],
        "$defs": {
            "SetAside": _record(SET_ASIDE, SET_ASIDE_HEADERS, value),
            "TriedAgain": _record(TRIED_AGAIN, TRIED_AGAIN_HEADERS, {"type": "null"}),
        },
    }


def _record(description: str, headers: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": description,
        "type": "object",
        "properties": {"key": KEY, "headers": headers, "value": value},
        "required": ["key", "headers", "value"],
    }
