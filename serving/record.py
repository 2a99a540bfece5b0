"""A conversation as it is kept in the flow's checkpoints: everything needed to go on after a crash.

Kept as plain JSON values. It carries the events of its last step and the answer that step gave, so that a
step which was kept, but whose events or answer never went out, can be finished later: events are appended
again (their ids make that harmless), and a retried request gets the very answer that was lost.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from negotiation.events import ConversationEvent
from negotiation.moves import parse_message
from negotiation.scenario import Context, NegotiationState, Turn
from serving.replies import SpokenReply
from serving.schemas import ConversationShown, Reply, ShownTurn, Status


class StepAnswer(BaseModel):
    """What a request was answered. ``key`` is the Idempotency-Key, ``fingerprint`` the request's digest."""

    model_config = ConfigDict(frozen=True)

    key: str | None
    fingerprint: str
    body: dict[str, Any]


class ConversationRecord(BaseModel):
    """``ids``, ``sampled``, ``logprobs``: the agent's transcript (negotiation.transcript), equal lengths.

    ``sequence`` is the number of the next event; ``events`` are those of the last step, ``last`` its answer
    (None after a step that nobody asked for, such as expiry), ``opening`` the answer to the request that
    opened the conversation. ``consent``: training may use it. ``customer``: what the business told of its customer,
    kept to take it out of events. ``held`` is the agent's reply that waits for a person's approval: no turn yet.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    adapter: str
    context: Context
    state: NegotiationState
    ids: list[int] = Field(default_factory=list)
    sampled: list[int] = Field(default_factory=list)
    logprobs: list[float] = Field(default_factory=list)
    sequence: int = 0
    events: list[ConversationEvent] = Field(default_factory=list)
    opening: StepAnswer | None = None
    last: StepAnswer | None = None
    outcome_reported: bool = False
    held: SpokenReply | None = None
    consent: bool = False
    customer: dict[str, str] = Field(default_factory=dict)

    @property
    def status(self) -> Status:
        if self.held is not None:
            return "awaiting_approval"
        return "open" if self.state.closed is None else "closed"

    def standing(self) -> dict[str, Any]:
        """The fields ``state``, ``reason`` and ``agreement`` of an answer."""
        return {"state": self.status, "reason": self.state.closed, "agreement": self.state.agreement}

    def shown(self) -> ConversationShown:
        """The conversation as the customer saw it."""
        turns = tuple(ShownTurn(role=t.role, **dict(shown_to_customer(t))) for t in self.state.turns)
        return ConversationShown(
            id=self.id,
            scenario=self.context.scenario,
            adapter=self.adapter,
            turns=turns,
            outcome_reported=self.outcome_reported,
            **self.standing(),
        )


def shown_to_customer(turn: Turn) -> Reply:
    """A turn as the other side may see it. A move that the scenario hides (a secret selection) stays hidden."""
    visible = turn.move is not None and parse_message(turn.shown).move == turn.move
    return Reply(text=turn.shown, move=turn.move if visible else None)
