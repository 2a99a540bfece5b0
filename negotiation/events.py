"""Conversation events, schema version 1: what serving publishes and the pipeline consumes.

Fields are only ever added, with a default: readers take events of earlier writers, and pass over what is new to them.

Event ids are derived from conversation id and sequence number (UUID version 5, RFC 9562), so a repeated
publication of the same event is recognised wherever it arrives.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context

SCHEMA_VERSION = 1
CONVERSATIONS_TOPIC = "sparring.conversations.v1"
DEAD_LETTER_TOPIC = "sparring.dead-letter.v1"
ADAPTERS_TOPIC = "sparring.adapters.v1"
_NAMESPACE = uuid.UUID("6f2f6c1e-6f0b-5d0e-9c43-2f3f6a3a9a01")


class Opened(BaseModel):
    """A conversation began. ``context`` has the agent's view only, unless the source knows both (a replay,
    a practice talk that the service drew itself)."""

    model_config = ConfigDict(frozen=True)
    type: Literal["opened"] = "opened"
    context: Context
    adapter: str
    source: Literal["live", "simulated", "replay"] = "live"
    labels: dict[str, str] = Field(default_factory=dict)


class Guarded(StrEnum):
    """What became of a reply whose words overstepped: a second try was shown, or a safe reply put in its place."""

    REGENERATED = "regenerated"
    REPLACED = "replaced"


class Approval(StrEnum):
    """What a person decided about an offer that waited for approval."""

    APPROVED = "approved"
    REFUSED = "refused"


class Message(BaseModel):
    """One message. ``shown`` is what the other side saw; ``prompt_tokens``/``completion_tokens`` are counts."""

    model_config = ConfigDict(frozen=True)
    type: Literal["message"] = "message"
    role: Role
    text: str
    shown: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    guarded: Guarded | None = None


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
    """What came of it, as far as the reporter knows. ``rewards`` and ``points`` of the unknown side are absent."""

    model_config = ConfigDict(frozen=True)
    type: Literal["outcome"] = "outcome"
    agreed: bool
    success: bool | None = None
    rewards: dict[Role, float] = Field(default_factory=dict)
    points: dict[Role, float] = Field(default_factory=dict)
    pareto_optimal: bool | None = None
    counterpart_view: dict[str, object] | None = None
    note: str = ""


class Erased(BaseModel):
    """A tombstone: the tenant had the conversation's text erased. Readers drop what they keep of it."""

    model_config = ConfigDict(frozen=True)
    type: Literal["erased"] = "erased"


Payload = Annotated[Opened | Message | Offer | Closed | OutcomeReported | Erased, Field(discriminator="type")]


class ConversationEvent(BaseModel):
    """The envelope. ``sequence`` counts from 0 within a conversation without gaps."""

    model_config = ConfigDict(frozen=True)
    schema_version: Literal[1] = 1
    tenant: str
    conversation_id: str
    sequence: int = Field(ge=0)
    occurred_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    payload: Payload

    @computed_field  # type: ignore[prop-decorator]
    @property
    def event_id(self) -> str:
        return str(uuid.uuid5(_NAMESPACE, f"{self.conversation_id}:{self.sequence}"))
