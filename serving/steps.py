"""What can happen to a conversation, what it can be refused for, and the draft that one run of the flow works on.

A draft is never stored. It hears the customer, lets the agent speak, and numbers the events of both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from negotiation.catalogue import scenario_named
from negotiation.events import Approval, ConversationEvent, Message, Offer, OutcomeReported, Payload
from negotiation.moves import ParsedMessage, parse_message
from negotiation.roles import Role
from negotiation.scenario import Context, Turn
from negotiation.transcript import Transcript
from serving.record import ConversationRecord
from serving.redaction import Redactor
from serving.replies import SpokenReply, after


class MessageDoesNotFit(ValueError):
    """The prompt with this message leaves no room in the model's context for a reply."""


class ControlTokens(ValueError):
    """A text holds tokens that mark turns for the model: it could speak in another role's name."""


class ConversationClosed(ValueError):
    """The conversation has ended: nothing more can be said."""


class OutcomeRefused(ValueError):
    """The conversation is still open, or its outcome has been reported already."""


class NothingToApprove(ValueError):
    """No offer of the conversation waits for approval."""


class Open(BaseModel):
    model_config = ConfigDict(frozen=True)
    kind: Literal["open"] = "open"
    id: str
    tenant: str
    adapter: str
    context: Context
    source: Literal["live", "simulated"] = "live"
    labels: dict[str, str] = {}
    consent: bool = False
    customer: dict[str, str] = {}


class Say(BaseModel):
    """The customer's message."""

    model_config = ConfigDict(frozen=True)
    kind: Literal["say"] = "say"
    text: str


class Report(BaseModel):
    model_config = ConfigDict(frozen=True)
    kind: Literal["report"] = "report"
    outcome: OutcomeReported


class Abandon(BaseModel):
    """Nobody has spoken for too long."""

    model_config = ConfigDict(frozen=True)
    kind: Literal["abandon"] = "abandon"


class Decide(BaseModel):
    """A person's word on the offer that waits for approval."""

    model_config = ConfigDict(frozen=True)
    kind: Literal["decide"] = "decide"
    approved: bool
    note: str = ""


Command = Open | Say | Report | Abandon | Decide


class Step(BaseModel):
    """The input of one run: what happened, and for which request (see StepAnswer). ``stream``: somebody listens."""

    model_config = ConfigDict(frozen=True)
    command: Command
    key: str | None = None
    fingerprint: str = ""
    stream: bool = False


@dataclass
class Draft:
    """Work in progress of one run."""

    step: Step
    record: ConversationRecord
    transcript: Transcript
    redactor: Redactor
    reply: SpokenReply | None = None
    parsed: ParsedMessage | None = None
    events: list[ConversationEvent] = field(default_factory=list)

    def emit(self, payload: Payload) -> None:
        """Give the event the next number of its conversation, without personal data."""
        record = self.record
        event = ConversationEvent(
            tenant=record.tenant,
            conversation_id=record.id,
            sequence=record.sequence + len(self.events),
            adapter=record.adapter,
            consent=record.consent,
            payload=payload,
        )
        self.events.append(self.redactor.event(event, record.customer))

    def hear(self, text: str) -> None:
        """Let the scenario judge the customer's message."""
        record = self.record
        scenario = scenario_named(record.context.scenario)
        state = scenario.advance(record.context, record.state, Role.COUNTERPART, text)
        self.record = record.model_copy(update={"state": state})
        turn = state.turns[-1]
        self.emit(Message(role=turn.role, text=turn.text, shown=turn.shown))
        self._emit_offer(turn)

    def say(self, reply: SpokenReply, approval: Approval | None = None, note: str = "") -> None:
        """Let the scenario judge the agent's: legality and authority are checked here, in code."""
        record = self.record
        scenario = scenario_named(record.context.scenario)
        state = scenario.advance(record.context, record.state, Role.AGENT, reply.text)
        turn = state.turns[-1]
        if turn.blocked:
            turn = turn.model_copy(update={"shown": after(reply.released, turn.shown)})
            state = state.model_copy(update={"turns": (*state.turns[:-1], turn)})
        self.record = record.model_copy(update={"state": state})
        reply.write(self.transcript)
        self.emit(
            Message(
                role=turn.role,
                text=turn.text,
                shown=turn.shown,
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=reply.completion_tokens,
                guarded=reply.guarded,
                token_ids=() if reply.replaced else reply.token_ids,
                logprobs=() if reply.replaced else reply.logprobs,
            )
        )
        self._emit_offer(turn, approval, note)

    def _emit_offer(self, turn: Turn, approval: Approval | None = None, note: str = "") -> None:
        written = parse_message(turn.text).move
        if written is not None:
            self.emit(
                Offer(
                    role=turn.role,
                    move=written,
                    binding=turn.move is not None,
                    rejected=turn.rejected,
                    approval=approval,
                    approval_note=note,
                )
            )
