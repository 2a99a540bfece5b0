"""JSON Schema 2020-12 of the conversation events, as readers take them: schema versions 1 up to the newest.

Keys that readers can do without are not required, and keys that they do not know are allowed: they pass over them.
This release writes every key. What a schema admits, ``negotiation.events.read_event`` reads; that reader is in places
more lenient (it takes ``"5"`` for a number), which is no part of the contract.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, get_args

from negotiation.events import SCHEMA_VERSION, ConversationEvent, Payload

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

_MODELS = get_args(get_args(Payload)[0])
KINDS: dict[str, str] = {model.model_fields["type"].default: model.__name__ for model in _MODELS}
"""Each kind of event, and the name of its payload's definition."""


def identifier(name: str) -> str:
    """The ``$id`` of a document of this schema version. A name, no address: nothing is to be fetched there."""
    return f"urn:sparring:events:{SCHEMA_VERSION}:{name}"


def event_schema() -> Schema:
    """An event of any kind: envelope and payload, told apart by ``payload.type``."""
    body = definitions("#/$defs/{model}")
    envelope = body.pop(ConversationEvent.__name__)
    return _document("conversation-event", "Conversation event", envelope, body)


def kind_schema(kind: str) -> Schema:
    """An event of one kind, envelope and payload. Raises KeyError for an unknown kind."""
    body = definitions("#/$defs/{model}")
    envelope = body.pop(ConversationEvent.__name__)
    name = KINDS[kind]
    title, description = f"Conversation event: {kind}", body[name]["description"]
    payload = {"$ref": f"#/$defs/{name}", "description": envelope["properties"]["payload"]["description"]}
    envelope = {**envelope, "properties": {**envelope["properties"], "payload": payload}, "description": description}
    return _document(kind, title, envelope, body)


def definitions(reference: str) -> dict[str, Schema]:
    """The event's model and all that it refers to, by name, references written as ``reference`` says."""
    read = ConversationEvent.model_json_schema(ref_template=reference)
    written = ConversationEvent.model_json_schema(ref_template=reference, mode="serialization")
    found: dict[str, Schema] = read.pop("$defs")
    # Computed, so that only the written form has it.
    read["properties"] = {"event_id": written["properties"]["event_id"], **read["properties"]}
    found[ConversationEvent.__name__] = read
    return {name: _tidy(schema) for name, schema in sorted(found.items())}


def text(docstring: str) -> str:
    """A docstring as Markdown of one line a paragraph."""
    paragraphs = inspect.cleandoc(docstring).replace("``", "`").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _tidy(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    # A keyword of OpenAPI; here the constant in each payload's `type` does the same.
    kept = {key: _tidy(value) for key, value in schema.items() if key not in ("discriminator", "readOnly")}
    if isinstance(kept.get("description"), str):
        kept["description"] = text(kept["description"])
    properties = kept.get("properties")
    if isinstance(properties, dict):
        # The tag has a default for whoever builds the model in Python; on the wire nothing is told apart without it.
        tags = [key for key, value in properties.items() if "const" in value and value.pop("default", None)]
        if tags:
            kept["required"] = [*tags, *kept.get("required", ())]
    return kept


def _document(name: str, title: str, schema: Schema, around: dict[str, Schema]) -> Schema:
    body = {key: value for key, value in schema.items() if key != "title"}
    head = {"$schema": DIALECT, "$id": identifier(name), "title": f"{title}, schema version {SCHEMA_VERSION}"}
    return {**head, "description": body.pop("description"), **body, "$defs": _referred(body, around)}


def _referred(schema: Any, around: dict[str, Schema]) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    waiting = [schema]
    while waiting:
        for name in re.findall(r"#/\$defs/(\w+)", repr(waiting.pop())):
            if name not in found:
                found[name] = around[name]
                waiting.append(around[name])
    return dict(sorted(found.items()))
