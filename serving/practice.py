"""Practice talks: a person plays the customer against the agent now in service, on a scenario drawn here.

The draw stays on this side. The player is told the public part and the customer's card, never what the agent may
agree to. The conversation itself keeps both sides, so a restart, a retry or another replica scores the same talk.

Their source is ``simulated``: figures of ``live`` conversations are about customers, and whoever plays a card is
none. The label ``channel`` = ``page`` tells people from scripted customers.
"""

from __future__ import annotations

import secrets

from pydantic import BaseModel, ConfigDict

from negotiation.catalogue import NAMES, scenario_named
from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import CloseReason, ScenarioError
from serving.conversations import Conversations
from serving.errors import ApiError
from serving.schemas import ConversationOpened, ReportOutcome

LABELS = {"channel": "page"}
_SEEDS = 2**62


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScenarioShown(_Body):
    name: str
    title: str
    about: str


class ScenariosShown(_Body):
    scenarios: tuple[ScenarioShown, ...]


class PracticeDrawn(_Body):
    """An opened conversation, what both sides know (``public``) and what only the customer does (``card``)."""

    scenario: str
    public: dict[str, object]
    card: dict[str, object]
    first_speaker: Role
    conversation: ConversationOpened


class PracticeOutcome(_Body):
    """How a talk came out for the customer. What it was worth to the agent would give its limits away.

    ``points`` are the scenario's own unit: points, or minor units of money under the budget.
    """

    id: str
    scenario: str
    adapter: str
    reason: CloseReason
    agreement: Move | None
    agreed: bool
    success: bool
    points: float
    reward: float
    pareto_optimal: bool | None
    detail: str


def scenarios_shown() -> ScenariosShown:
    """The scenarios there are, in words."""
    known = (scenario_named(name) for name in NAMES)
    return ScenariosShown(scenarios=tuple(ScenarioShown(name=s.name, title=s.title, about=s.about) for s in known))


async def draw(conversations: Conversations, tenant: str, name: str, key: str | None) -> PracticeDrawn:
    """Draw a scenario and open a conversation on it. A retry with the same key gets the first draw again."""
    try:
        scenario = scenario_named(name)
    except ScenarioError as error:
        raise ApiError(404, "unknown_scenario", str(error), param="name") from error
    # Seeds under zero are nobody else's: a practice talk is neither a training scenario nor one that judges.
    context = scenario.generate(-1 - secrets.randbelow(_SEEDS)).model_copy(update={"seed": None})
    opened = ConversationOpened.model_validate(
        await conversations.open_drawn(tenant, context, LABELS, key, {"scenario": name})
    )
    kept = (await conversations.record(tenant, opened.id)).context
    return PracticeDrawn(
        scenario=kept.scenario,
        public=kept.public,
        card=kept.views[Role.COUNTERPART],
        first_speaker=kept.first_speaker,
        conversation=opened,
    )


async def outcome(conversations: Conversations, tenant: str, conversation_id: str) -> PracticeOutcome:
    """Score a closed practice talk, and put its outcome on record unless somebody did. Asking again is harmless."""
    record = await conversations.record(tenant, conversation_id)
    if Role.COUNTERPART not in record.context.views:
        message = "the customer's side of this conversation is not known: only drawn ones are scored here"
        raise ApiError(409, "not_drawn", message)
    if record.state.closed is None:
        raise ApiError(409, "conversation_open", "the conversation is still open: ask once it has closed")
    scored = scenario_named(record.context.scenario).outcome(record.context, record.state)
    if not record.outcome_reported:
        report = ReportOutcome(
            agreed=scored.agreed,
            success=scored.success,
            rewards=scored.rewards,
            points=scored.points,
            pareto_optimal=scored.pareto_optimal,
            note=scored.detail,
        )
        await conversations.outcome(tenant, conversation_id, report, None)
    return PracticeOutcome(
        id=record.id,
        scenario=record.context.scenario,
        adapter=record.adapter,
        reason=record.state.closed,
        agreement=record.state.agreement,
        agreed=scored.agreed,
        success=scored.success,
        points=scored.points[Role.COUNTERPART],
        reward=scored.rewards[Role.COUNTERPART],
        pareto_optimal=scored.pareto_optimal,
        detail=scored.detail,
    )
