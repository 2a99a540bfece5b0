"""The one interface behind which every scenario stands. Nothing above this package knows which it runs.

A scenario splits what is known three ways: ``public`` (both sides), and one private *view* per role. Prompts
are made from a role's own view only, so a private value of one side cannot reach the other side's prompt
except through words spoken. All methods are pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from negotiation.authority import AuthorityLimits, Stake
from negotiation.moves import Move
from negotiation.roles import Role


class ScenarioError(ValueError):
    """A context, view or setting that breaks the scenario's rules. Names the value, the limit and the remedy."""


_Model = TypeVar("_Model", bound=BaseModel)


def read_model(model: type[_Model], data: dict[str, Any] | None, where: str) -> _Model:
    """Validate one part of a context. Raises ScenarioError naming the key and the offending value."""
    if data is None:
        raise ScenarioError(f"{where} is missing from the context")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in (where, *first["loc"]))
        raise ScenarioError(f"{key}: {first['msg']} (got {first['input']!r})") from error


class Context(BaseModel):
    """One negotiation to be had: who speaks first and what each role privately knows.

    ``views`` maps each role to that role's view as plain JSON values (the scenario validates them). In live
    traffic the counterpart's view is unknown and absent.
    """

    model_config = ConfigDict(frozen=True)

    scenario: str = Field(description="Name of the scenario, such as telesales.")
    seed: int | None = Field(None, description="Where it was drawn from; null where it was not drawn.")
    first_speaker: Role = Field(Role.AGENT, description="Who says the first message.")
    public: dict[str, Any] = Field(description="What both sides know, in the scenario's own form.")
    views: dict[Role, dict[str, Any]] = Field(description="What each side knows alone, where that is known.")


class Turn(BaseModel):
    """One message as it counted. ``shown`` is what the other side was shown of it.

    ``move`` is the legal, authorised move that took effect, or None; ``rejected`` says why a move that was
    written did not count (illegal, malformed, beyond authority).
    """

    model_config = ConfigDict(frozen=True)

    role: Role
    text: str
    shown: str
    move: Move | None = None
    rejected: str | None = None
    blocked: bool = False


class CloseReason(StrEnum):
    """Why a conversation ended."""

    AGREED = "agreed"
    WALKED_AWAY = "walked_away"
    TURN_LIMIT = "turn_limit"
    STATEMENTS_DIFFER = "statements_differ"
    ABANDONED = "abandoned"


class NegotiationState(BaseModel):
    """Where a negotiation stands. ``standing`` is the offer on the table and ``standing_by`` who made it."""

    model_config = ConfigDict(frozen=True)

    turns: tuple[Turn, ...] = ()
    next_speaker: Role = Role.AGENT
    standing: Move | None = None
    standing_by: Role | None = None
    statements: dict[Role, Move] = Field(default_factory=dict)
    closed: CloseReason | None = None
    agreement: Move | None = None

    def turns_by(self, role: Role) -> int:
        return sum(turn.role is role for turn in self.turns)


class Outcome(BaseModel):
    """How a finished negotiation came out, scored with both views.

    ``success`` is Success@1 of the scenario, ``rewards`` each role's own reward in [-1, 1], ``points`` the
    scenario's natural unit (points, or minor units of money), ``pareto_optimal`` None without agreement.
    """

    model_config = ConfigDict(frozen=True)

    agreed: bool
    success: bool
    rewards: dict[Role, float]
    points: dict[Role, float]
    pareto_optimal: bool | None = None
    detail: str = ""


class Scenario(Protocol):
    """A kind of negotiation."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    """What the customer is there to do, said to the person who plays the customer."""
    max_turns: ClassVar[int]

    def generate(self, seed: int) -> Context:
        """A valid context from a seed: same seed, same context, on every machine."""
        ...

    def complete(self, context: Context, seed: int) -> Context:
        """Fill in an unknown counterpart view for a context met in live traffic."""
        ...

    def validate(self, context: Context) -> None:
        """Raise ScenarioError if the context breaks the rules."""
        ...

    def system_prompt(self, role: Role, context: Context) -> str:
        """The role's system prompt: the public part and its own view, nothing else."""
        ...

    def authority(self, context: Context) -> AuthorityLimits:
        """What the agent may bind the business to."""
        ...

    def overstep(self, context: Context, state: NegotiationState, text: str) -> str | None:
        """Why the agent's message may not be shown, or None: its words promise what its move does not.

        ``state`` is the one before the message. A move beyond authority is no matter of words: it is hidden anyway.
        """
        ...

    def harmless(self, context: Context, state: NegotiationState, sentence: str) -> bool:
        """Whether the agent may be heard saying this before its move is known: it commits to nothing at all."""
        ...

    def stake(self, context: Context, state: NegotiationState, move: Move) -> Stake | None:
        """What a legal move of the agent would bind the business to if made now; None where no money is bound."""
        ...

    def begin(self, context: Context) -> NegotiationState: ...

    def advance(self, context: Context, state: NegotiationState, role: Role, text: str) -> NegotiationState:
        """Take one message into account. Needs only the public part and the agent's view.

        Raises ValueError when the negotiation is closed or it is not ``role``'s turn.
        """
        ...

    def outcome(self, context: Context, state: NegotiationState) -> Outcome:
        """Score a closed negotiation. Raises ValueError while it is open or a view is missing."""
        ...
