"""Conversation events, schema version 2: what serving publishes and the pipeline consumes.

Fields are only ever added, with a default: readers take events of earlier writers, and pass over fields that are
new to them. A schema version above theirs is not theirs to interpret: :func:`read_event` refuses it, and the event
becomes a dead letter until a newer reader takes it up.

Version 2 added ``consent`` and ``adapter`` to the envelope, and to messages their sampled tokens and what was
redacted; later, who a customer is by pseudonym, and whether an outcome was signed.

Event ids are derived from conversation id and sequence number (UUID version 5, RFC 9562), so a repeated
publication of the same event is recognised wherever it arrives.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field

from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context

SCHEMA_VERSION = 2
CONVERSATIONS_TOPIC = "sparring.conversations.v1"
DEAD_LETTER_TOPIC = "sparring.dead-letter.v1"
ADAPTERS_TOPIC = "sparring.adapters.v1"
_NAMESPACE = uuid.UUID("6f2f6c1e-6f0b-5d0e-9c43-2f3f6a3a9a01")


class Opened(BaseModel):
    """A conversation began. ``context`` has the agent's view only, unless the source knows both (a replay,
    a practice talk that the service drew itself).

    ``customer`` is a pseudonym of the business's customer, equal for the same customer of the same tenant, so that
    what one customer contributes can be capped. None where the business did not say who it is.
    """

    model_config = ConfigDict(frozen=True)
    type: Literal["opened"] = "opened"
    context: Context
    adapter: str
    source: Literal["live", "simulated", "replay"] = "live"
    labels: dict[str, str] = Field(default_factory=dict)
    customer: str | None = None


class Guarded(StrEnum):
    """What became of a reply whose words overstepped: a second try was shown, or a safe reply put in its place."""

    REGENERATED = "regenerated"
    REPLACED = "replaced"


class Approval(StrEnum):
    """What a person decided about an offer that waited for approval."""

    APPROVED = "approved"
    REFUSED = "refused"


class Message(BaseModel):
    """One message. ``shown`` is what the other side saw; ``prompt_tokens``/``completion_tokens`` are counts.

    ``token_ids`` and ``logprobs`` are the tokens as they were sampled, with their log-probabilities in nats: equal
    lengths, empty for a message that no model of ours sampled, and for one of which something was redacted.
    ``redacted`` names the kinds of personal data that were replaced by a tag before the event left serving.
    """

    model_config = ConfigDict(frozen=True)
    type: Literal["message"] = "message"
    role: Role
    text: str
    shown: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    guarded: Guarded | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    redacted: tuple[str, ...] = ()


class Offer(BaseModel):
    """A structured move was made. ``binding`` is False where it was illegal, beyond authority or refused approval."""

    model_config = ConfigDict(frozen=True)
    type: Literal["offer"] = "offer"
    role: Role
    move: Move
    binding: bool
    rejected: str | None = None
    approval: Approval | None = None
    approval_note: str = ""


class Closed(BaseModel):
    """No further message will come."""

    model_config = ConfigDict(frozen=True)
    type: Literal["closed"] = "closed"
    reason: CloseReason
    agreement: Move | None = None


class OutcomeReported(BaseModel):
    """What came of it, as far as the reporter knows. ``rewards`` and ``points`` of the unknown side are absent.

    ``signed``: the business signed the call that reported it; what anybody else could have reported is not.
    """

    model_config = ConfigDict(frozen=True)
    type: Literal["outcome"] = "outcome"
    agreed: bool
    success: bool | None = None
    rewards: dict[Role, float] = Field(default_factory=dict)
    points: dict[Role, float] = Field(default_factory=dict)
    pareto_optimal: bool | None = None
    counterpart_view: dict[str, object] | None = None
    note: str = ""
    signed: bool = False


class Erased(BaseModel):
    """A tombstone: the tenant had the conversation's text erased, or it was purged. Readers drop what they keep."""

    model_config = ConfigDict(frozen=True)
    type: Literal["erased"] = "erased"
    why: Literal["erased", "purged"] = "erased"


Payload = Annotated[Opened | Message | Offer | Closed | OutcomeReported | Erased, Field(discriminator="type")]


class ConversationEvent(BaseModel):
    """The envelope. ``sequence`` counts from 0 within a conversation without gaps.

    ``adapter`` is the version that the conversation is pinned to. ``consent``: whether training may use the
    conversation; False in events of version 1, which did not say.
    """

    model_config = ConfigDict(frozen=True)
    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    tenant: str
    conversation_id: str
    sequence: int = Field(ge=0)
    adapter: str | None = None
    consent: bool = False
    occurred_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    payload: Payload

    @computed_field  # type: ignore[prop-decorator]
    @property
    def event_id(self) -> str:
        return str(uuid.uuid5(_NAMESPACE, f"{self.conversation_id}:{self.sequence}"))


class UnreadableEvent(ValueError):
    """What was read is no event of a known version. The message says where and what, never the offending value."""


def read_event(body: str | bytes) -> ConversationEvent:
    """An event from its JSON, of this schema version or an earlier one. Raises UnreadableEvent."""
    try:
        return ConversationEvent.model_validate_json(body)
    except ValidationError as error:
        raise UnreadableEvent(_reason(error)) from None


def _reason(error: ValidationError) -> str:
    # Where and what only: the offending value may be somebody's words.
    first = error.errors(include_input=False, include_url=False)[0]
    if first["loc"] == ("schema_version",) and first["type"] == "less_than_equal":
        return f"schema_version: newer than {SCHEMA_VERSION}, the newest that this release reads"
    return f"{_path(first['loc']) or 'record'}: {first['type']}"


def _path(location: Sequence[int | str]) -> str:
    # Keys of a mapping are the writer's words, as values are.
    names, mappings = _schema_words()
    parts: list[str] = []
    for place, part in enumerate(location):
        parts.append(str(part) if isinstance(part, int) or part in names else "*")
        if part in mappings and place + 1 < len(location):
            parts.append("*")
            break
    return ".".join(parts)


@cache
def _schema_words() -> tuple[frozenset[str], frozenset[str]]:
    """Words that may stand in a path since the schema itself has them, and those fields whose keys are free."""
    names: set[str] = set()
    mappings: set[str] = set()
    for node in _nodes(ConversationEvent.model_json_schema()):
        names.update(node.get("properties", ()), node.get("enum", ()))
        if "const" in node:
            names.add(str(node["const"]))
        for name, field in node.get("properties", {}).items():
            if any(each.get("type") == "object" for each in (field, *field.get("anyOf", ()))):
                mappings.add(name)
    return frozenset(names), frozenset(mappings)


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _nodes(inner)
