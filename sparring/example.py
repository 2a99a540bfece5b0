"""Writes ``docs/sparring.example.toml`` out of the settings models, so that it cannot go out of date.

Run: ``python -m sparring.example > docs/sparring.example.toml``.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparring.settings import PREFIX, Settings, section_model, sections_with_state

_HEAD = f"""\
# Every setting with its default. Copy this to ./sparring.toml (or name a file with --config or {PREFIX}CONFIG) and
# keep only what you change. The environment wins over the file: {PREFIX}SERVING__PORT=9000 sets [serving] port.
# Unknown keys are errors. Lines that are commented out have no value by default.
"""


def example() -> str:
    """The text of the example file."""
    return _HEAD + "".join(_table(Settings(), ()))


def _table(model: BaseModel, path: tuple[str, ...]) -> Iterator[str]:
    nested: list[tuple[str, BaseModel]] = []
    left_out: list[tuple[str, str, type[BaseModel]]] = []
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            nested.append((name, value))
            continue
        if value is None and (section := section_model(field.annotation)) is not None:
            left_out.append((name, field.description or "", section))
            continue
        if path and name == "state_dir" and path[0] in sections_with_state():
            continue
        yield _describe(field)
        yield f"# {name} =\n" if value is None else f"{name} = {_literal(value)}\n"
    for name, description, section in left_out:
        yield f"\n{_comment(description)}# [{'.'.join((*path, name))}]\n"
        for key, inner in section.model_fields.items():
            value = None if inner.is_required() else inner.get_default(call_default_factory=True)
            yield _describe(inner) + (f"# {key} =\n" if value is None else f"# {key} = {_literal(value)}\n")
    for name, value in nested:
        yield f"\n[{'.'.join((*path, name))}]\n"
        yield from _table(value, (*path, name))


def _describe(field: FieldInfo) -> str:
    description = field.description or ""
    if bounds := _bounds(field.metadata):
        description += f" ({bounds})"
    return "\n" + _comment(description)


def _comment(text: str) -> str:
    return textwrap.fill(text, 116, initial_indent="# ", subsequent_indent="# ") + "\n"


def _bounds(metadata: list[Any]) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    return ", ".join(
        f"{sign} {getattr(item, name)}" for item in metadata for name, sign in signs.items() if hasattr(item, name)
    )


def _literal(value: Any) -> str:
    """A TOML value. JSON's strings, numbers, booleans and flat arrays are TOML as they stand."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {_literal(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return json.dumps(value)


if __name__ == "__main__":
    print(example(), end="")
