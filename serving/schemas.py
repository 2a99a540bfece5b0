"""Bodies of the HTTP API. Unknown fields are refused. Free of FastAPI, so that the client shares them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from negotiation.events import OutcomeReported
from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import CloseReason

Label = Annotated[str, Field(max_length=128)]
Status = Literal["open", "awaiting_approval", "closed"]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorDetail(_Body):
    """``code`` is stable; ``param`` names the offending field or header, where there is one."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(_Body):
    """The one shape of every error."""

    error: ErrorDetail


class AgentView(_Body):
    """Private views the service may know: the agent's. The customer's private side is never accepted."""

    agent: dict[str, object]


class OpenContext(_Body):
    """What is to be negotiated. A seed is not accepted: it would give the customer's private side away."""

    public: dict[str, object]
    views: AgentView
    first_speaker: Role = Role.AGENT


class OpenConversation(_Body):
    """``training_consent``: the customer agreed that training may use the conversation; a simulated one needs none.

    ``customer`` holds what the business knows of its customer (name, e-mail, ...): taken out of every event.
    """

    scenario: str = Field(max_length=64)
    context: OpenContext
    source: Literal["live", "simulated"] = "live"
    labels: dict[Label, Label] = Field(default_factory=dict, max_length=16)
    training_consent: bool = False
    customer: dict[Label, Label] = Field(default_factory=dict, max_length=16)


class SendMessage(_Body):
    """``stream`` answers as server-sent events: parts of the reply, then the whole answer, then ``[DONE]``."""

    text: str = Field(min_length=1)
    stream: bool = False


class DecideApproval(_Body):
    """A person's word on the offer that waits. ``note`` is kept with the decision; the customer never sees it."""

    approved: bool
    note: str = Field("", max_length=1000)


class ApprovalShown(_Body):
    """What waits for approval: the agent's message as it would be shown, and its move."""

    text: str
    move: Move


class ReportOutcome(_Body):
    """What came of a closed conversation. ``counterpart_view`` may be told now that it is over."""

    agreed: bool
    success: bool | None = None
    rewards: dict[Role, FiniteFloat] = Field(default_factory=dict)
    points: dict[Role, FiniteFloat] = Field(default_factory=dict)
    pareto_optimal: bool | None = None
    counterpart_view: dict[str, object] | None = None
    note: str = Field("", max_length=1000)

    def event(self) -> OutcomeReported:
        return OutcomeReported.model_validate(self.model_dump())


class Reply(_Body):
    """A message of the agent as the customer is shown it; ``move`` only where the customer may see it."""

    text: str
    move: Move | None = None


class _Standing(_Body):
    state: Status
    reason: CloseReason | None = None
    agreement: Move | None = None


class ConversationOpened(_Standing):
    """``message`` is the agent's first one, or null when the customer speaks first."""

    id: str
    adapter: str
    message: Reply | None = None


class MessageAnswered(_Standing):
    """``reply`` is null when the customer's own message ended the conversation."""

    reply: Reply | None = None


class OutcomeRecorded(_Body):
    id: str
    recorded: Literal[True] = True


class ShownTurn(_Body):
    role: Role
    text: str
    move: Move | None = None


class ConversationShown(_Standing):
    id: str
    scenario: str
    adapter: str
    turns: tuple[ShownTurn, ...]
    outcome_reported: bool


class ReplicaShown(_Body):
    """A vLLM server: whether it takes requests, why not, and how many it is answering."""

    url: str
    state: Literal["up", "down"]
    reason: str
    in_flight: int


class AdaptersShown(_Body):
    """``pinned`` counts open conversations and running completions by adapter version.

    ``failed`` says why a version was refused; ``replicas`` is empty with the in-process engine.
    """

    current: str | None
    loaded: tuple[str, ...]
    pinned: dict[str, int]
    failed: dict[str, str] = Field(default_factory=dict)
    replicas: tuple[ReplicaShown, ...] = ()
