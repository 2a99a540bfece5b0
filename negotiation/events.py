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
    context: Context = Field(description="What is negotiated, and what is known of each side.")
    adapter: str = Field(description="Version that the conversation is pinned to, such as agent@7.")
    source: Literal["live", "simulated", "replay"] = Field(
        "live", description="A customer's, one with a simulated customer, or a recorded corpus."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="The business's own words about it.")
    customer: str | None = Field(None, description="Pseudonym of the customer; null where it is not known.")


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
    role: Role = Field(description="Who said it.")
    text: str = Field(description="What was said, the structured move in its brackets included.")
    shown: str = Field(description="What the other side saw of it.")
    prompt_tokens: int = Field(0, description="How many tokens the model read; 0 where no model of ours spoke.")
    completion_tokens: int = Field(0, description="How many tokens the model wrote, tries not shown included.")
    guarded: Guarded | None = Field(None, description="What became of words that overstepped; null for others.")
    token_ids: tuple[int, ...] = Field((), description="Tokens as sampled; empty where unknown or redacted.")
    logprobs: tuple[float, ...] = Field((), description="Their log-probabilities in nats, as many as token_ids.")
    redacted: tuple[str, ...] = Field((), description="Kinds of personal data replaced by a tag, such as email.")


class Offer(BaseModel):
    """A structured move was made. ``binding`` is False where it was illegal, beyond authority or refused approval."""

    model_config = ConfigDict(frozen=True)
    type: Literal["offer"] = "offer"
    role: Role = Field(description="Who made it.")
    move: Move = Field(description="The move as it was written in the message before.")
    binding: bool = Field(description="Whether it took effect.")
    rejected: str | None = Field(None, description="Why it took none; null for a binding one.")
    approval: Approval | None = Field(None, description="What a person decided about it; null if none was asked.")
    approval_note: str = Field("", description="That person's note; the customer never sees it.")


class Closed(BaseModel):
    """No further message will come."""

    model_config = ConfigDict(frozen=True)
    type: Literal["closed"] = "closed"
    reason: CloseReason = Field(description="Why the conversation ended.")
    agreement: Move | None = Field(None, description="The move that both sides agreed to; null without agreement.")


class OutcomeReported(BaseModel):
    """What came of it, as far as the reporter knows. ``rewards`` and ``points`` of the unknown side are absent.

    ``signed``: the business signed the call that reported it; what anybody else could have reported is not.
    """

    model_config = ConfigDict(frozen=True)
    type: Literal["outcome"] = "outcome"
    agreed: bool = Field(description="Whether a deal came of it.")
    success: bool | None = Field(None, description="Success by the scenario's rule; null where not known.")
    rewards: dict[Role, float] = Field(default_factory=dict, description="Reward of each known side, in [-1, 1].")
    points: dict[Role, float] = Field(
        default_factory=dict, description="In the scenario's unit: points, or minor units of money."
    )
    pareto_optimal: bool | None = Field(None, description="Null without agreement, or where not known.")
    counterpart_view: dict[str, object] | None = Field(
        None, description="The customer's private side, where the reporter told it afterwards."
    )
    note: str = Field("", description="The reporter's note.")
    signed: bool = Field(False, description="Whether the business signed the report.")


class Erased(BaseModel):
    """A tombstone: the tenant had the conversation's text erased, or it was purged. Readers drop what they keep."""

    model_config = ConfigDict(frozen=True)
    type: Literal["erased"] = "erased"
    why: Literal["erased", "purged"] = Field("erased", description="Asked for by the tenant, or past its retention.")


Payload = Annotated[Opened | Message | Offer | Closed | OutcomeReported | Erased, Field(discriminator="type")]


class ConversationEvent(BaseModel):
    """The envelope. ``sequence`` counts from 0 within a conversation without gaps.

    ``adapter`` is the version that the conversation is pinned to. ``consent``: whether training may use the
    conversation; False in events of version 1, which did not say.
    """

    model_config = ConfigDict(frozen=True)
    schema_version: int = Field(
        SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION, description="Version of this contract that the writer followed."
    )
    tenant: str = Field(description="The business whose conversation it is.")
    conversation_id: str = Field(description="The same for all events of a conversation; the record's key.")
    sequence: int = Field(ge=0, description="Place within the conversation, from 0 without gaps.")
    adapter: str | None = Field(None, description="Version that the conversation is pinned to; null if not told.")
    consent: bool = Field(False, description="Whether training may use the conversation.")
    occurred_at: datetime = Field(default_factory=lambda: datetime.now(UTC), description="When it happened, UTC.")
    payload: Payload = Field(description="What happened.")

    @computed_field(  # type: ignore[prop-decorator]
        description="UUID version 5 of conversation id and sequence: the same event has the same id wherever it is."
        " Derived by readers, who pass over what stands here.",
        json_schema_extra={"format": "uuid"},
    )
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
