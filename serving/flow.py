"""The dialogue flow: one LangGraph graph that reads from top to bottom, one run for each thing that happens.

    read the state -> reply -> parse the structured move -> check authority limits -> close or continue

Nodes work on a draft that LangGraph never stores; only the last node changes the conversation. A run cut short
anywhere (a crash, a failed engine, a cancelled request) thus leaves the conversation as it was before. The
graph writes no event and sends nothing: it returns the events, and the caller puts them in the log.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from langgraph.channels.untracked_value import UntrackedValue
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, ConfigDict, TypeAdapter

from negotiation.catalogue import scenario_named
from negotiation.events import Closed, ConversationEvent, Message, Offer, Opened, OutcomeReported, Payload
from negotiation.generation import Engine, GenerationRequest, Sampling
from negotiation.moves import ParsedMessage, parse_message
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context
from negotiation.transcript import ChatFormat, Transcript
from serving.record import ConversationRecord, StepAnswer, shown_to_customer
from serving.schemas import ConversationOpened, MessageAnswered, OutcomeRecorded

LEAST_MESSAGE_TOKENS = 8
"""With less room than this for the customer's next message, the conversation is closed: nothing would fit."""


class MessageDoesNotFit(ValueError):
    """The prompt with this message leaves no room in the model's context for a reply."""


class ControlTokens(ValueError):
    """A text holds tokens that mark turns for the model: it could speak in another role's name."""


class ConversationClosed(ValueError):
    """The conversation has ended: nothing more can be said."""


class OutcomeRefused(ValueError):
    """The conversation is still open, or its outcome has been reported already."""


class Open(BaseModel):
    model_config = ConfigDict(frozen=True)
    kind: Literal["open"] = "open"
    id: str
    tenant: str
    adapter: str
    context: Context
    source: Literal["live", "simulated"] = "live"
    labels: dict[str, str] = {}


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


Command = Open | Say | Report | Abandon
_COMMAND: TypeAdapter[Command] = TypeAdapter(Command)


class Step(BaseModel):
    """The input of one run: what happened, and for which request (see StepAnswer)."""

    model_config = ConfigDict(frozen=True)
    command: Command
    key: str | None = None
    fingerprint: str = ""


@dataclass
class Draft:
    """Work in progress of one run."""

    step: Step
    record: ConversationRecord
    transcript: Transcript
    prompt_tokens: int = 0
    completion_tokens: int = 0
    text: str = ""
    parsed: ParsedMessage | None = None
    events: list[ConversationEvent] = field(default_factory=list)

    def emit(self, payload: Payload) -> None:
        """Give the event the next number of its conversation."""
        record = self.record
        sequence = record.sequence + len(self.events)
        self.events.append(
            ConversationEvent(tenant=record.tenant, conversation_id=record.id, sequence=sequence, payload=payload)
        )

    def take(self, role: Role, text: str) -> None:
        """Let the scenario judge a message: legality and authority are checked here, in code."""
        record = self.record
        scenario = scenario_named(record.context.scenario)
        state = scenario.advance(record.context, record.state, role, text)
        self.record = record.model_copy(update={"state": state})
        turn = state.turns[-1]
        counts = {}
        if role is Role.AGENT:
            counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        self.emit(Message(role=role, text=turn.text, shown=turn.shown, **counts))
        written = parse_message(text).move
        if written is not None:
            self.emit(Offer(role=role, move=written, binding=turn.move is not None, rejected=turn.rejected))


class FlowState(TypedDict, total=False):
    """``conversation`` is what is kept: a ConversationRecord as JSON values. The others live for one run."""

    conversation: dict[str, Any]
    step: Annotated[dict[str, Any], UntrackedValue]
    draft: Annotated[Draft, UntrackedValue]


class Flow:
    """The nodes of the graph, and what they need."""

    def __init__(self, engine: Engine, *, max_tokens: int, temperature: float, timeout_seconds: float) -> None:
        self._engine = engine
        self._chat = ChatFormat(engine.tokenizer)
        self._timeout = timeout_seconds
        self._sampling = Sampling(
            max_tokens=max_tokens, temperature=temperature, stop_token_ids=(self._chat.end_of_turn_id,)
        )

    def graph(self) -> StateGraph[FlowState]:
        """The flow, ready to be compiled with a checkpointer."""
        graph: StateGraph[FlowState] = StateGraph(FlowState)
        graph.add_node("read_state", self.read_state)
        graph.add_node("reply", self.reply)
        graph.add_node("parse_move", self.parse_move)
        graph.add_node("check_authority", self.check_authority)
        graph.add_node("close_or_continue", self.close_or_continue)
        graph.add_edge(START, "read_state")
        graph.add_conditional_edges("read_state", agent_is_next, {True: "reply", False: "close_or_continue"})
        graph.add_edge("reply", "parse_move")
        graph.add_edge("parse_move", "check_authority")
        graph.add_edge("check_authority", "close_or_continue")
        graph.add_edge("close_or_continue", END)
        return graph

    async def read_state(self, state: FlowState) -> FlowState:
        """Take up the conversation where it was, and hear what happened."""
        step = Step.model_validate(state["step"])
        command = step.command
        if isinstance(command, Open):
            draft = self._begin(step, command)
        else:
            draft = self._resume(step, ConversationRecord.model_validate(state["conversation"]))
        record = draft.record
        if isinstance(command, Say):
            if record.state.closed is not None:
                raise ConversationClosed(f"the conversation ended: {record.state.closed}; open another one")
            self._refuse_control_tokens(command.text)
            draft.take(Role.COUNTERPART, command.text)
            if draft.record.state.closed is None:
                draft.transcript.hear(draft.record.state.turns[-1].shown)
        elif isinstance(command, Report):
            self._check_report(record)
            draft.record = record.model_copy(update={"outcome_reported": True})
        elif isinstance(command, Abandon):
            if record.state.closed is not None:
                raise ConversationClosed(f"the conversation ended before: {record.state.closed}")
            closed = record.state.model_copy(update={"closed": CloseReason.ABANDONED})
            draft.record = record.model_copy(update={"state": closed})
        return {"draft": draft}

    async def reply(self, state: FlowState) -> FlowState:
        """The adapter that this conversation is pinned to speaks."""
        draft = state["draft"]
        ids = draft.transcript.ids
        room = self._engine.context_length - self._sampling.max_tokens
        if len(ids) > room:
            raise MessageDoesNotFit(
                f"the conversation with this message is {len(ids)} tokens, the limit is {room}: send a shorter one"
            )
        request = GenerationRequest(tuple(ids), draft.record.adapter, self._sampling)
        async with asyncio.timeout(self._timeout):
            result = await self._engine.generate_async(request)
        draft.prompt_tokens, draft.completion_tokens = len(ids), len(result.token_ids)
        draft.text = draft.transcript.speak(result.token_ids, result.logprobs)
        return {"draft": draft}

    async def parse_move(self, state: FlowState) -> FlowState:
        """Read the one structured move out of the words."""
        draft = state["draft"]
        draft.parsed = parse_message(draft.text)
        return {"draft": draft}

    async def check_authority(self, state: FlowState) -> FlowState:
        """The move counts only if it is legal and within what the agent may bind the business to."""
        draft = state["draft"]
        assert draft.parsed is not None, "parse_move comes before"
        draft.take(Role.AGENT, draft.parsed.text)
        return {"draft": draft}

    async def close_or_continue(self, state: FlowState) -> FlowState:
        """Close what has ended, number the events, write the answer, and hand the conversation back."""
        draft = state["draft"]
        self._close_without_room(draft)
        command, record = draft.step.command, draft.record
        was_open = isinstance(command, Open | Say | Abandon)
        if was_open and record.state.closed is not None:
            draft.emit(Closed(reason=record.state.closed, agreement=record.state.agreement))
        if isinstance(command, Report):
            draft.emit(command.outcome)
        last = StepAnswer(key=draft.step.key, fingerprint=draft.step.fingerprint, body=_answer(command, record))
        kept = record.model_copy(
            update={
                "ids": draft.transcript.ids,
                "sampled": draft.transcript.sampled,
                "logprobs": draft.transcript.logprobs,
                "sequence": record.sequence + len(draft.events),
                "events": draft.events,
                "last": last,
                "opening": last if isinstance(command, Open) else record.opening,
            }
        )
        return {"conversation": kept.model_dump(mode="json")}

    def _begin(self, step: Step, command: Open) -> Draft:
        context = command.context
        scenario = scenario_named(context.scenario)
        record = ConversationRecord(
            id=command.id,
            tenant=command.tenant,
            adapter=command.adapter,
            context=context,
            state=scenario.begin(context),
        )
        prompt = scenario.system_prompt(Role.AGENT, context)
        self._refuse_control_tokens(prompt)
        room = self._engine.context_length - self._sampling.max_tokens - LEAST_MESSAGE_TOKENS
        length = len(self._chat.opening(prompt))
        if length > room:
            raise MessageDoesNotFit(
                f"the context takes {length} tokens of the prompt, the limit is {room}: describe less in it"
            )
        transcript = Transcript(self._chat, prompt)
        if context.first_speaker is Role.AGENT:
            transcript.open()
        draft = Draft(step, record, transcript)
        draft.emit(Opened(context=context, adapter=command.adapter, source=command.source, labels=command.labels))
        return draft

    def _resume(self, step: Step, record: ConversationRecord) -> Draft:
        prompt = scenario_named(record.context.scenario).system_prompt(Role.AGENT, record.context)
        transcript = Transcript(self._chat, prompt, record.ids, record.sampled, record.logprobs)
        return Draft(step, record.model_copy(update={"events": []}), transcript)

    def _refuse_control_tokens(self, text: str) -> None:
        tokenizer = self._chat.tokenizer
        ids = tokenizer.encode(text, add_special_tokens=False)
        plain = tokenizer.decode(ids, skip_special_tokens=True)
        if plain != tokenizer.decode(ids, skip_special_tokens=False):
            raise ControlTokens("the text holds a control token of the model, such as <|end|>: leave it out")

    def _check_report(self, record: ConversationRecord) -> None:
        if record.state.closed is None:
            raise OutcomeRefused("the conversation is still open: report its outcome once it has closed")
        if record.outcome_reported:
            raise OutcomeRefused("the outcome of this conversation was reported before: it is kept once")

    def _close_without_room(self, draft: Draft) -> None:
        state = draft.record.state
        needed = len(draft.transcript.ids) + LEAST_MESSAGE_TOKENS + self._sampling.max_tokens
        if state.closed is None and needed > self._engine.context_length:
            closed = state.model_copy(update={"closed": CloseReason.TURN_LIMIT})
            draft.record = draft.record.model_copy(update={"state": closed})


def agent_is_next(state: FlowState) -> bool:
    """Whether it is the agent's turn to speak."""
    draft = state["draft"]
    now = draft.record.state
    speaking = isinstance(draft.step.command, Open | Say)
    return speaking and now.closed is None and now.next_speaker is Role.AGENT


def _answer(command: Command, record: ConversationRecord) -> dict[str, Any]:
    turns = record.state.turns
    spoken = shown_to_customer(turns[-1]) if turns and turns[-1].role is Role.AGENT else None
    answer: BaseModel
    if isinstance(command, Open):
        answer = ConversationOpened(id=record.id, adapter=record.adapter, message=spoken, **record.standing())
    elif isinstance(command, Report):
        answer = OutcomeRecorded(id=record.id)
    else:
        answer = MessageAnswered(reply=spoken, **record.standing())
    return answer.model_dump(mode="json")
