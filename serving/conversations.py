"""What the API does with conversations: one step at a time each, kept, logged, and only then answered.

The order of one step is the whole of exactly-once here:

1. the store marks the conversation *pending*;
2. the flow runs; its last checkpoint holds the new state, the step's events and its answer;
3. one transaction of the store queues the events in the outbox, clears *pending* and keeps the answer for its
   Idempotency-Key;
4. the answer goes out. The relay publishes the events (``serving.relay``), whether or not the event log is there.

A step whose reply is streamed is the same. A client that goes away before it was shown anything ends the step,
and the conversation is as before; once something was shown, the step is finished without the client, so that what
it saw stays true and a retry with the same Idempotency-Key gets the rest.

A crash before 2 completes leaves nothing behind. A crash later leaves *pending* set: the events of the kept
step are queued at the next start or the next access, and a retry with the same key gets its answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol

from negotiation.catalogue import scenario_named
from negotiation.generation import AdapterNotLoaded, PromptTooLong
from negotiation.moves import parse_message
from negotiation.roles import Role
from negotiation.scenario import Context, ScenarioError
from serving.admission import Admission
from serving.checkpoints import ConversationCheckpoints
from serving.config import ServingSettings
from serving.engines import EngineBusy, EngineClosed, EngineUnavailable
from serving.erasure import Erasure
from serving.errors import ApiError, not_found
from serving.idempotency import fingerprint_of as _fingerprint
from serving.idempotency import require_same_request
from serving.leases import Leases, LeaseTaken
from serving.log_context import enter_conversation
from serving.metrics import ServiceMetrics
from serving.record import ConversationRecord, StepAnswer
from serving.relay import Relay
from serving.room import Room
from serving.schemas import (
    ApprovalShown,
    ConversationShown,
    DecideApproval,
    OpenConversation,
    ReportOutcome,
    SendMessage,
)
from serving.steps import (
    Abandon,
    Command,
    ControlTokens,
    ConversationClosed,
    Decide,
    MessageDoesNotFit,
    NothingToApprove,
    Open,
    OutcomeRefused,
    Report,
    Say,
    Step,
)
from serving.storage_errors import conversation_busy
from serving.store import ConversationRow, ConversationStore

log = logging.getLogger("serving")

Answer = dict[str, Any]
Listen = Callable[[str], object]

APPROVAL_RETRY_SECONDS = 30
"""What a message during an approval is told to wait: a person decides, not a machine."""


class AdapterPins(Protocol):
    """The part of the adapter slots that conversations need."""

    def pin_current(self) -> str: ...

    def pin(self, name: str) -> None: ...

    def release(self, name: str) -> None: ...


class Conversations:
    """The conversations of all tenants. One instance per process; several processes where ``leases`` are shared."""

    def __init__(
        self,
        settings: ServingSettings,
        pins: AdapterPins,
        checkpoints: ConversationCheckpoints,
        store: ConversationStore,
        relay: Relay,
        metrics: ServiceMetrics,
        load_again: Callable[[str], object],
        leases: Leases,
        admission: Admission,
        room: Room,
    ) -> None:
        """``load_again`` loads a version that is kept on disk; blocking."""
        self._load_again = load_again
        self._leases = leases
        self._settings = settings
        self._pins = pins
        self._checkpoints = checkpoints
        self._store = store
        self._relay = relay
        self._metrics = metrics
        self._pinned: dict[str, str] = {}
        self._admission = admission
        self._room = room
        self._erasure = Erasure(store, checkpoints, relay, metrics)
        self._streams: set[asyncio.Task[Answer]] = set()
        self._busy: set[tuple[str, str]] = set()

    async def open(self, tenant: str, body: OpenConversation, key: str | None) -> Answer:
        """Open a conversation; the agent speaks at once if it is first. Pinned to the adapter of this moment."""
        fingerprint = _fingerprint("open", body.model_dump(mode="json"))
        consent = body.training_consent or body.source == "simulated"
        return await self._open(
            tenant, self._context(body), body.source, body.labels, key, fingerprint, consent, body.customer
        )

    async def open_drawn(
        self, tenant: str, context: Context, labels: dict[str, str], key: str | None, request: dict[str, Any]
    ) -> Answer:
        """Open a conversation on a context that this service drew itself, the customer's side included.

        A person types there: training may not use it. ``request`` is what was asked for: a retry with the same key
        gets the conversation of the first draw.
        """
        return await self._open(tenant, context, "simulated", labels, key, _fingerprint("draw", request))

    async def _open(
        self,
        tenant: str,
        context: Context,
        source: Literal["live", "simulated"],
        labels: dict[str, str],
        key: str | None,
        fingerprint: str,
        consent: bool = False,
        customer: dict[str, str] | None = None,
    ) -> Answer:
        identity = _conversation_id(tenant, key)
        async with self._lease(identity, tenant, key):
            if key is not None and (answer := await self._stored(tenant, key, fingerprint)) is not None:
                return answer
            if key is not None and (row := await self._store.row(identity, tenant)) is not None and row.erased:
                message = "the conversation that this Idempotency-Key opened was erased: use a fresh key"
                raise ApiError(409, "conversation_erased", message, param="Idempotency-Key")
            kept = await self._checkpoints.read(identity) if key is not None else None
            if kept is not None and kept.opening is not None:
                # A crash after the step was kept: the answer is there, it only never went out.
                self._same_request(kept.opening, fingerprint)
                await self._settle(kept)
                return kept.opening.body
            self._room.require()
            adapter = self._pin(identity)
            try:
                await self._store.register(identity, tenant, adapter)
                command = Open(
                    id=identity,
                    tenant=tenant,
                    adapter=adapter,
                    context=context,
                    source=source,
                    labels=labels,
                    consent=consent,
                    customer=customer or {},
                )
                record = await self._run(identity, Step(command=command, key=key, fingerprint=fingerprint))
            except BaseException:
                if await self._checkpoints.read(identity) is None:
                    self._unpin(identity)
                    await self._store.forget(identity)
                    await self._checkpoints.drop(identity)
                raise
            return await self._finish(record)

    async def message(self, tenant: str, conversation_id: str, body: SendMessage, key: str | None) -> Answer:
        """Take the customer's message; answers with the agent's, or none if theirs ended the conversation."""
        return await self._step(tenant, conversation_id, self._say(body), key)

    async def message_stream(
        self, tenant: str, conversation_id: str, body: SendMessage, key: str | None
    ) -> AsyncGenerator[str | Answer]:
        """Like :meth:`message`: first the reply in parts as they are cleared, then the answer."""
        parts: asyncio.Queue[str | None] = asyncio.Queue()
        step = asyncio.create_task(self._step(tenant, conversation_id, self._say(body), key, parts.put_nowait))
        self._streams.add(step)
        step.add_done_callback(lambda _: parts.put_nowait(None))
        step.add_done_callback(self._stream_ended)
        shown = ""
        try:
            while (part := await parts.get()) is not None:
                shown += part
                yield part
            answer = await step
        finally:
            if not step.done() and not shown and parts.empty():
                step.cancel()
                await asyncio.wait({step})
        reply = answer.get("reply")
        if reply is not None and (rest := reply["text"][len(shown) :]):
            yield rest
        yield answer

    async def drain(self) -> None:
        """Wait for steps that go on although their client went away."""
        while self._streams:
            await asyncio.wait(self._streams)

    def _stream_ended(self, step: asyncio.Task[Answer]) -> None:
        self._streams.discard(step)
        if not step.cancelled() and (error := step.exception()) is not None:
            log.info("a streamed step failed", extra={"error_type": type(error).__name__})

    def _say(self, body: SendMessage) -> Say:
        size, limit = len(body.text.encode()), self._settings.max_message_bytes
        if size > limit:
            raise ApiError(
                413, "message_too_long", f"the message is {size} bytes, the limit is {limit}: send less", param="text"
            )
        if not body.text.strip():
            raise ApiError(422, "invalid_request", "text: is blank, say something", param="text")
        return Say(text=body.text)

    async def decide(self, tenant: str, conversation_id: str, body: DecideApproval, key: str | None) -> Answer:
        """A person's word on the offer that waits: it is made as it was, or the safe reply is given."""
        command = Decide(approved=body.approved, note=body.note)
        return await self._step(tenant, conversation_id, command, key)

    async def waiting(self, tenant: str, conversation_id: str) -> ApprovalShown:
        """The offer that waits for approval."""
        held = (await self._owned_record(tenant, conversation_id)).held
        move = None if held is None else parse_message(held.text).move
        if held is None or move is None:
            raise ApiError(409, "nothing_to_approve", "no offer of this conversation waits for approval")
        return ApprovalShown(text=held.text, move=move)

    async def outcome(self, tenant: str, conversation_id: str, body: ReportOutcome, key: str | None) -> Answer:
        """Take a report of what came of a closed conversation. Once."""
        if body.counterpart_view is not None:
            record = await self._owned_record(tenant, conversation_id)
            views = {**record.context.views, Role.COUNTERPART: body.counterpart_view}
            _validate(record.context.model_copy(update={"views": views}), "counterpart_view")
        return await self._step(tenant, conversation_id, Report(outcome=body.event()), key)

    async def show(self, tenant: str, conversation_id: str) -> ConversationShown:
        """The conversation as the customer saw it."""
        return (await self._owned_record(tenant, conversation_id)).shown()

    async def record(self, tenant: str, conversation_id: str) -> ConversationRecord:
        """All that is kept of it, private sides included: to work with, never to answer with."""
        return await self._owned_record(tenant, conversation_id)

    async def erase(self, tenant: str, conversation_id: str) -> None:
        """Erase the conversation's text here, and tell the event log. Again is fine; unknown and foreign are 404."""
        async with self._lease(conversation_id, tenant, None):
            row = await self._store.row(conversation_id, tenant)
            if row is None:
                raise not_found(conversation_id)
            if row.erased and not row.pending:
                return
            self._unpin(conversation_id)
            await self._erasure.erase(conversation_id)

    async def _finish_erasures(self) -> None:
        for row in await self._store.unfinished_erasures():
            await self._alone(row, self._finish_erasure)

    async def _finish_erasure(self, row: ConversationRow) -> None:
        await self._erasure.finish(row.id)

    async def recover(self) -> int:
        """After a start: finish what a crash left unfinished, and pin the adapters of open conversations again.

        Returns how many are open. One whose adapter is gone stays, is answered 503, and expires.
        """
        await self._finish_erasures()
        for row in await self._store.unfinished():
            if row.pending:
                await self._alone(row, self._settle_again)
        still_open = await self._store.open_now()
        for row in still_open:
            await self._pin_again(row)
        log.info("recovered", extra={"open_conversations": len(still_open)})
        return len(still_open)

    async def expire(self) -> int:
        """Close conversations that nobody has touched for longer than the time to live. Returns how many."""
        before = self._store.now() - self._settings.conversation_ttl_seconds
        expired = 0
        for row in await self._store.idle_since(before):
            if (row.tenant, row.id) in self._busy:
                continue
            try:
                await self._step(row.tenant, row.id, Abandon(), None)
            except ApiError as error:
                log.warning("not expired", extra={"conversation_id": row.id, "code": error.code})
                continue
            expired += 1
        return expired

    async def upkeep(self) -> None:
        """Drop what nobody needs any more (superseded checkpoints, old answers and talks), finish what was left."""
        await self._finish_erasures()
        now = self._store.now()
        await self._checkpoints.prune()
        await self._store.drop_answers(now - self._settings.idempotency_ttl_seconds)
        for row in await self._store.closed_before(now - self._settings.conversation_retention_seconds):
            await self._alone(row, self._retire)
        if self._leases.shared:
            await self._follow_other_replicas()
        for row in await self._store.pending_since(now - self._settings.reply_timeout_seconds):
            await self._alone(row, self._settle_again)

    async def _step(
        self, tenant: str, conversation_id: str, command: Command, key: str | None, listen: Listen | None = None
    ) -> Answer:
        fingerprint = _fingerprint(conversation_id, command.model_dump(mode="json"))
        async with self._lease(conversation_id, tenant, key):
            row, answer = await self._store.begin(conversation_id, tenant, key)
            if row is None:
                raise not_found(conversation_id)
            if self._leases.shared and row.open and conversation_id not in self._pinned:
                await self._pin_again(row)
            if answer is not None:
                self._same_request(StepAnswer(key=key, **vars(answer)), fingerprint)
                return answer.body
            if row.pending:
                # The step that was kept last may not have been finished: its events may not be queued.
                kept = await self._checkpoints.read(conversation_id)
                if kept is None:
                    raise not_found(conversation_id)
                await self._settle(kept)
                if key is not None and kept.last is not None and kept.last.key == key:
                    self._same_request(kept.last, fingerprint)
                    return kept.last.body
                # Settling cleared the mark; the step that comes now needs its own.
                await self._store.begin(conversation_id, tenant, key)
            if not isinstance(command, Abandon):
                self._room.require()
            await self._mind_approval(conversation_id, command)
            step = Step(command=command, key=key, fingerprint=fingerprint)
            return await self._finish(await self._run(conversation_id, step, listen))

    async def _mind_approval(self, conversation_id: str, command: Command) -> None:
        """Refuse what can not be done now, before the flow begins: a new run would drop the one that waits.

        Read each time and not remembered: another replica may have asked for the approval, or given it.
        """
        kept = await self._checkpoints.read(conversation_id)
        awaiting = kept is not None and kept.held is not None
        if awaiting and not isinstance(command, Decide | Abandon):
            message = "an offer waits for a colleague's approval: look again, or send the message once it is decided"
            raise ApiError(409, "awaiting_approval", message, retry_after=APPROVAL_RETRY_SECONDS)
        if isinstance(command, Decide) and not awaiting:
            raise ApiError(409, "nothing_to_approve", "no offer of this conversation waits for approval")

    async def _run(self, conversation_id: str, step: Step, listen: Listen | None = None) -> ConversationRecord:
        try:
            return await self._checkpoints.run(conversation_id, step, listen)
        except MessageDoesNotFit as error:
            if isinstance(step.command, Open):
                raise ApiError(422, "context_too_long", str(error), param="context") from error
            raise ApiError(413, "message_too_long", str(error), param="text") from error
        except ControlTokens as error:
            param = "context" if isinstance(step.command, Open) else "text"
            raise ApiError(422, "control_tokens", str(error), param=param) from error
        except PromptTooLong as error:
            raise ApiError(413, "message_too_long", str(error), param="text") from error
        except ConversationClosed as error:
            raise ApiError(409, "conversation_closed", str(error)) from error
        except NothingToApprove as error:
            raise ApiError(409, "nothing_to_approve", str(error)) from error
        except OutcomeRefused as error:
            raise ApiError(409, "outcome_refused", str(error)) from error
        except AdapterNotLoaded as error:
            raise ApiError(503, "adapter_not_loaded", str(error), retry_after=1) from error
        except (EngineBusy, EngineClosed, EngineUnavailable) as error:
            raise ApiError(503, "overloaded", str(error), retry_after=1) from error
        except TimeoutError as error:
            limit = self._settings.reply_timeout_seconds
            message = f"no reply within {limit:g} s; the message was not taken, send it again"
            raise ApiError(503, "reply_timeout", message, retry_after=1) from error

    async def _finish(self, record: ConversationRecord) -> Answer:
        await self._settle(record)
        self._metrics.count(record)
        log.info("step", extra={"conversation_id": record.id, "sequence": record.sequence, "adapter": record.adapter})
        assert record.last is not None, "every step has an answer"
        return record.last.body

    async def _settle(self, record: ConversationRecord) -> None:
        """Step 3 of the module's order. Doing it twice is harmless."""
        last, kept = record.last, None
        if last is not None and last.key is not None:
            kept = (record.tenant, last.key, last.fingerprint, last.body)
        still_open = record.state.closed is None
        await self._store.finish(record.id, record.events, still_open=still_open, answer=kept)
        self._relay.wake()
        if not still_open:
            self._unpin(record.id)

    async def _stored(self, tenant: str, key: str, fingerprint: str) -> Answer | None:
        answer = await self._store.answer(tenant, key)
        if answer is None:
            return None
        self._same_request(StepAnswer(key=key, **vars(answer)), fingerprint)
        return answer.body

    async def _owned_record(self, tenant: str, conversation_id: str) -> ConversationRecord:
        record = None
        if await self._store.owned(conversation_id, tenant):
            record = await self._checkpoints.read(conversation_id)
        if record is None:
            raise not_found(conversation_id)
        return record

    def _pin(self, conversation_id: str) -> str:
        try:
            adapter = self._pins.pin_current()
        except LookupError as error:
            raise ApiError(503, "no_adapter", "no adapter is in service yet", retry_after=1) from error
        self._pinned[conversation_id] = adapter
        return adapter

    async def _alone(self, row: ConversationRow, work: Callable[[ConversationRow], Awaitable[None]]) -> None:
        """Do the upkeep of a conversation, unless somebody works on it: then there is a next time."""
        try:
            async with self._lease(row.id, row.tenant, None):
                await work(row)
        except ApiError as error:
            if error.code != "conversation_busy":
                raise

    async def _settle_again(self, row: ConversationRow) -> None:
        """Finish a step that a crash may have left unfinished."""
        record = await self._checkpoints.read(row.id)
        if record is None:
            self._unpin(row.id)
            await self._store.forget(row.id)
        else:
            await self._settle(record)

    async def _retire(self, row: ConversationRow) -> None:
        """The retention of a closed conversation is over. Its checkpoints first: a crash between is made good."""
        await self._checkpoints.drop(row.id)
        await self._store.retire(row.id)

    async def _follow_other_replicas(self) -> None:
        """Hold the adapters of conversations that others opened; let go of those that others closed."""
        settled = set(self._pinned) - {identity for _, identity in self._busy}
        rows = {row.id: row for row in await self._store.open_now()}
        busy = {identity for _, identity in self._busy}
        for identity in settled - rows.keys() - busy:
            self._unpin(identity)
        for identity in rows.keys() - self._pinned.keys() - busy:
            await self._pin_again(rows[identity])

    async def _pin_again(self, row: ConversationRow) -> None:
        try:
            await asyncio.to_thread(self._load_again, row.adapter)
            if row.id in self._pinned:
                return
            self._pins.pin(row.adapter)
        except (LookupError, ValueError, OSError, RuntimeError) as error:
            why = {"conversation_id": row.id, "adapter": row.adapter, "why": str(error)}
            log.error("the adapter of an open conversation is gone", extra=why)
        else:
            self._pinned[row.id] = row.adapter

    def _unpin(self, conversation_id: str) -> None:
        adapter = self._pinned.pop(conversation_id, None)
        if adapter is not None:
            self._pins.release(adapter)

    def _context(self, body: OpenConversation) -> Context:
        context = Context(
            scenario=body.scenario,
            first_speaker=body.context.first_speaker,
            public=body.context.public,
            views={Role.AGENT: body.context.views.agent},
        )
        _validate(context, "context")
        return context

    def _same_request(self, answer: StepAnswer, fingerprint: str) -> None:
        require_same_request(answer.fingerprint, fingerprint)

    @asynccontextmanager
    async def _lease(self, conversation_id: str, tenant: str, key: str | None) -> AsyncIterator[None]:
        """One step at a time per conversation and per key: LangGraph would let two writers fork the thread.

        Another tenant's lease of the same id is apart: neither learns from it that the id exists.
        """
        lease = (tenant, conversation_id)
        names = [f"conversation {json.dumps(lease)}", *([] if key is None else [f"key {json.dumps([tenant, key])}"])]
        enter_conversation(conversation_id)
        with self._admission.entered(tenant, key):
            if lease in self._busy:
                raise conversation_busy()
            self._busy.add(lease)
            try:
                async with self._leases.hold(names):
                    yield
            except LeaseTaken as error:
                raise conversation_busy() from error
            finally:
                self._busy.discard(lease)


def _validate(context: Context, param: str) -> None:
    try:
        scenario = scenario_named(context.scenario)
    except ScenarioError as error:
        raise ApiError(422, "unknown_scenario", str(error), param="scenario") from error
    try:
        scenario.validate(context)
    except ScenarioError as error:
        raise ApiError(422, "invalid_context", str(error), param=param) from error


def _conversation_id(tenant: str, key: str | None) -> str:
    """Random; with an Idempotency-Key the same for the same key, so that a retry finds its conversation."""
    if key is None:
        return f"conv_{uuid.uuid4().hex}"
    return f"conv_{hashlib.sha256(json.dumps([tenant, key]).encode()).hexdigest()[:32]}"
