"""The dialogue flow: one LangGraph graph that reads from top to bottom, one run for each thing that happens.

    read the state -> reply -> parse the structured move -> check authority limits -> close or continue
                                                               (an offer that a person must confirm) -> approval

Nodes work on a draft that LangGraph never stores; only the last node changes the conversation. A run cut short
anywhere (a crash, a failed engine, a cancelled request) thus leaves the conversation as it was before. The
graph writes no event and sends nothing: it returns the events, and the caller puts them in the log.

An offer that needs approval is kept as ``held`` by close_or_continue, which ends the step for the customer; then the
run waits in ``approval``, across restarts, for a Decide.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

from langgraph.channels.untracked_value import UntrackedValue
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel

from negotiation.authority import APPROVAL_NOTICE, ApprovalRule
from negotiation.catalogue import scenario_named
from negotiation.events import Approval, Closed, Offer, Opened
from negotiation.generation import Engine, Sampling
from negotiation.moves import parse_message
from negotiation.roles import Role
from negotiation.scenario import CloseReason
from negotiation.transcript import ChatFormat, Transcript
from serving.record import ConversationRecord, StepAnswer, shown_to_customer
from serving.redaction import Redactor
from serving.replies import Speaker, after
from serving.schemas import ConversationOpened, MessageAnswered, OutcomeRecorded, Reply
from serving.steps import (
    Abandon,
    Command,
    ControlTokens,
    ConversationClosed,
    Decide,
    Draft,
    MessageDoesNotFit,
    NothingToApprove,
    Open,
    OutcomeRefused,
    Report,
    Say,
    Step,
)

LEAST_MESSAGE_TOKENS = 8
"""With less room than this for the customer's next message, the conversation is closed: nothing would fit."""


class FlowState(TypedDict, total=False):
    """``conversation`` is what is kept: a ConversationRecord as JSON values. The others live for one run."""

    conversation: dict[str, Any]
    step: Annotated[dict[str, Any], UntrackedValue]
    draft: Annotated[Draft, UntrackedValue]


class Flow:
    """The nodes of the graph, and what they need."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_tokens: int,
        temperature: float,
        timeout_seconds: float,
        approval: ApprovalRule | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._engine = engine
        self._redactor = redactor or Redactor()
        self._approval = approval or ApprovalRule()
        self._chat = ChatFormat(engine.tokenizer)
        self._timeout = timeout_seconds
        self._sampling = Sampling(
            max_tokens=max_tokens, temperature=temperature, stop_token_ids=(self._chat.end_of_turn_id,)
        )
        self._speaker = Speaker(engine, self._sampling)

    def graph(self) -> StateGraph[FlowState]:
        """The flow, ready to be compiled with a checkpointer."""
        graph: StateGraph[FlowState] = StateGraph(FlowState)
        graph.add_node("read_state", self.read_state)
        graph.add_node("reply", self.reply)
        graph.add_node("parse_move", self.parse_move)
        graph.add_node("check_authority", self.check_authority)
        graph.add_node("close_or_continue", self.close_or_continue)
        graph.add_node("approval", self.approval)
        graph.add_edge(START, "read_state")
        graph.add_conditional_edges("read_state", agent_is_next, {True: "reply", False: "close_or_continue"})
        graph.add_edge("reply", "parse_move")
        graph.add_edge("parse_move", "check_authority")
        graph.add_edge("check_authority", "close_or_continue")
        graph.add_conditional_edges("close_or_continue", waits_for_approval, {True: "approval", False: END})
        graph.add_edge("approval", END)
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
            draft.hear(command.text)
            if draft.record.state.closed is None:
                draft.transcript.hear(draft.record.state.turns[-1].shown)
        elif isinstance(command, Report):
            self._check_report(record)
            draft.record = record.model_copy(update={"outcome_reported": True})
        elif isinstance(command, Abandon):
            if record.state.closed is not None:
                raise ConversationClosed(f"the conversation ended before: {record.state.closed}")
            closed = record.state.model_copy(update={"closed": CloseReason.ABANDONED})
            draft.record = record.model_copy(update={"state": closed, "held": None})
        return {"draft": draft}

    async def reply(self, state: FlowState) -> FlowState:
        """The adapter that this conversation is pinned to speaks; its words are checked before they are shown."""
        draft = state["draft"]
        record = draft.record
        ids = draft.transcript.ids
        room = self._engine.context_length - self._sampling.max_tokens
        if len(ids) > room:
            raise MessageDoesNotFit(
                f"the conversation with this message is {len(ids)} tokens, the limit is {room}: send a shorter one"
            )
        scenario = scenario_named(record.context.scenario)
        release = get_stream_writer() if draft.step.stream else None
        async with asyncio.timeout(self._timeout):
            draft.reply = await self._speaker.speak(
                tuple(ids), record.adapter, scenario, record.context, record.state, release
            )
        return {"draft": draft}

    async def parse_move(self, state: FlowState) -> FlowState:
        """Read the one structured move out of the words."""
        draft = state["draft"]
        assert draft.reply is not None, "reply comes before"
        draft.parsed = parse_message(draft.reply.text)
        return {"draft": draft}

    async def check_authority(self, state: FlowState) -> FlowState:
        """The move counts only if it is legal and within what the agent may bind the business to.

        One that a person must confirm first is put aside: neither a turn nor an event yet.
        """
        draft = state["draft"]
        assert draft.reply is not None, "reply comes before"
        assert draft.parsed is not None, "parse_move comes before"
        if draft.parsed.move is not None and self._needs_approval(draft):
            draft.record = draft.record.model_copy(update={"held": draft.reply})
        else:
            draft.say(draft.reply)
        return {"draft": draft}

    async def close_or_continue(self, state: FlowState) -> FlowState:
        """Close what has ended, number the events, write the answer, and hand the conversation back."""
        return self._kept(state["draft"])

    async def approval(self, state: FlowState) -> FlowState:
        """Wait for a person's word on the offer; then it is made as it was, or the safe reply is given.

        Nothing may come before the interrupt: the node begins anew when the word is there.
        """
        step = Step.model_validate(interrupt("an offer waits for approval"))
        record = ConversationRecord.model_validate(state["conversation"])
        command, held = step.command, record.held
        if not isinstance(command, Decide) or held is None:
            raise NothingToApprove("no offer waits for approval: it was decided about, or has lapsed")
        draft = self._resume(step, record.model_copy(update={"held": None}))
        if command.approved:
            draft.say(held, Approval.APPROVED, command.note)
            return self._kept(draft)
        draft.say(held.made_safe())
        refused = parse_message(held.text).move
        assert refused is not None, "only a message with a move is held"
        draft.emit(
            Offer(
                role=Role.AGENT,
                move=refused,
                binding=False,
                rejected="a person refused to approve it",
                approval=Approval.REFUSED,
                approval_note=command.note,
            )
        )
        return self._kept(draft)

    def _needs_approval(self, draft: Draft) -> bool:
        """Whether the reply's move would take effect and is one that a person must confirm.

        Terms that the agent has offered with effect before have been through this: once is enough.
        """
        assert draft.reply is not None, "reply comes before"
        context, state = draft.record.context, draft.record.state
        scenario = scenario_named(context.scenario)
        turn = scenario.advance(context, state, Role.AGENT, draft.reply.text).turns[-1]
        if turn.move is None or any(past.role is Role.AGENT and past.move == turn.move for past in state.turns):
            return False
        return self._approval.asks(scenario.stake(context, state, turn.move))

    def _kept(self, draft: Draft) -> FlowState:
        self._close_without_room(draft)
        command, record = draft.step.command, draft.record
        was_open = not isinstance(command, Report)
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
            consent=command.consent,
            customer=command.customer,
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
        draft = Draft(step, record, transcript, self._redactor)
        draft.emit(Opened(context=context, adapter=command.adapter, source=command.source, labels=command.labels))
        return draft

    def _resume(self, step: Step, record: ConversationRecord) -> Draft:
        prompt = scenario_named(record.context.scenario).system_prompt(Role.AGENT, record.context)
        transcript = Transcript(self._chat, prompt, record.ids, record.sampled, record.logprobs)
        return Draft(step, record.model_copy(update={"events": []}), transcript, self._redactor)

    def _refuse_control_tokens(self, text: str) -> None:
        if self._chat.holds_control_tokens(text):
            raise ControlTokens("the text holds a control token of the model, such as <|end|>: leave it out")

    def _check_report(self, record: ConversationRecord) -> None:
        if record.state.closed is None:
            raise OutcomeRefused("the conversation is still open: report its outcome once it has closed")
        if record.outcome_reported:
            raise OutcomeRefused("the outcome of this conversation was reported before: it is kept once")

    def _close_without_room(self, draft: Draft) -> None:
        state = draft.record.state
        if draft.record.held is not None:
            return
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


def waits_for_approval(state: FlowState) -> bool:
    """Whether the step has put an offer aside for a person to confirm."""
    return state["conversation"]["held"] is not None


def _answer(command: Command, record: ConversationRecord) -> dict[str, Any]:
    turns = record.state.turns
    spoken = shown_to_customer(turns[-1]) if turns and turns[-1].role is Role.AGENT else None
    if record.held is not None:
        spoken = Reply(text=after(record.held.released, APPROVAL_NOTICE))
    answer: BaseModel
    if isinstance(command, Open):
        answer = ConversationOpened(id=record.id, adapter=record.adapter, message=spoken, **record.standing())
    elif isinstance(command, Report):
        answer = OutcomeRecorded(id=record.id)
    else:
        answer = MessageAnswered(reply=spoken, **record.standing())
    return answer.model_dump(mode="json")
