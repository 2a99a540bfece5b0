"""The published contract of the event log: JSON Schemas and an AsyncAPI document, for readers and writers in any
language.

Generated out of the models that serving writes with and the pipeline reads with (``negotiation.events``), the headers
of dead letters and the settings of the topics, so that it cannot go out of date. Committed under ``docs/events``; a
test compares. Left out on purpose: a schema registry, and a second form of the same (Avro, Protobuf).

Run: ``python -m sparring.event_contract --output docs/events``; with ``--check`` nothing is written, and exit code 1
names what differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparring.event_contract.asyncapi import asyncapi
from sparring.event_contract.dead_letters import dead_letter_schema
from sparring.event_contract.schemas import KINDS, event_schema, kind_schema


def documents() -> dict[str, str]:
    """File name to text, of all that is published. The same text at every call."""
    schemas: dict[str, dict[str, Any]] = {
        "conversation-event.schema.json": event_schema(),
        **{f"{kind}.schema.json": kind_schema(kind) for kind in KINDS},
        "dead-letter.schema.json": dead_letter_schema(),
        "asyncapi.json": asyncapi(),
    }
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas.items()}


def differing(folder: Path) -> dict[str, str]:
    """File name to what is wrong with it in ``folder``: missing, out of date, or none of ours. Empty if all agree."""
    wanted = documents()
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}
    wrong = {name: "missing" for name in wanted if name not in found}
    wrong |= {name: "out of date" for name, text in wanted.items() if name in found and found[name] != text}
    return wrong | {name: "no part of the contract" for name in found if name not in wanted}


def write(folder: Path) -> list[str]:
    """Write all documents into ``folder``, which is made if it is missing; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = documents()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return list(texts)
