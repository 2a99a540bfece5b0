"""The events of one conversation, an example of each kind, written by the code that writes the real ones.

The scenario judges the moves, and the service's own step numbers the events and takes personal data out. Only the
words, the tokens and the clock are made up.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from negotiation.catalogue import scenario_named
from negotiation.event_log import DeadLetter
from negotiation.events import (
    CONVERSATIONS_TOPIC,
    SCHEMA_VERSION,
    Closed,
    ConversationEvent,
    Erased,
    Message,
    Offer,
    Opened,
    OutcomeReported,
    Payload,
    UnreadableEvent,
    read_event,
)
from negotiation.moves import parse_message
from negotiation.roles import Role
from negotiation.scenario import Context
from serving.redaction import Redactor

TENANT, CONVERSATION, ADAPTER = "acme", "conv_4f1c2a9e7b3d4c58a6e0d1f2b3c4d5e6", "agent@7"
CUSTOMER = {"name": "Robin Example"}
_BEGAN = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
_CONTEXT = Context(
    scenario="telesales",
    first_speaker=Role.COUNTERPART,
    public={"vehicles": [{"id": "van", "body": "van", "fuel": "diesel", "list_price": 2_100_000}]},
    views={Role.AGENT: {"floors": {"van": 1_800_000}}},
)
_SAID = (
    (Role.COUNTERPART, "I need a van. Write to robin@example.com.", (), ()),
    (Role.AGENT, "[offer van 19500]", (1042, 311, 977, 3), (-0.21, -0.04, -0.87, -0.01)),
    (Role.COUNTERPART, "That is fine. [accept]", (), ()),
)


def conversation() -> list[ConversationEvent]:
    """A conversation from its opening to its erasure: every kind of event, in order."""
    scenario = scenario_named(_CONTEXT.scenario)
    state = scenario.begin(_CONTEXT)
    payloads: list[Payload] = [Opened(context=_CONTEXT, adapter=ADAPTER, labels={"campaign": "spring"})]
    for role, said, ids, logprobs in _SAID:
        state = scenario.advance(_CONTEXT, state, role, said)
        turn = state.turns[-1]
        payloads.append(
            Message(
                role=role,
                text=turn.text,
                shown=turn.shown,
                prompt_tokens=96 if ids else 0,
                completion_tokens=len(ids),
                token_ids=ids,
                logprobs=logprobs,
            )
        )
        if (move := parse_message(said).move) is not None:
            payloads.append(Offer(role=role, move=move, binding=turn.move is not None, rejected=turn.rejected))
    assert state.closed is not None, "the example ends in an agreement"
    payloads += [
        Closed(reason=state.closed, agreement=state.agreement),
        OutcomeReported(agreed=True, success=True, rewards={Role.AGENT: 0.9}, points={Role.AGENT: 1_950_000.0}),
        Erased(),
    ]
    return [_event(sequence, payload) for sequence, payload in enumerate(payloads)]


def dead_letter() -> DeadLetter:
    """An event of a later release, set aside by this one."""
    body = conversation()[-2].model_copy(update={"schema_version": SCHEMA_VERSION + 1}).model_dump_json().encode()
    try:
        read_event(body)
    except UnreadableEvent as error:
        return DeadLetter(str(error), CONVERSATIONS_TOPIC, 3, 1234, _BEGAN + timedelta(minutes=5), body)
    raise AssertionError("a newer schema version was read")


def _event(sequence: int, payload: Payload) -> ConversationEvent:
    event = ConversationEvent(
        tenant=TENANT,
        conversation_id=CONVERSATION,
        sequence=sequence,
        # The tombstone says no more than what it is about.
        adapter=None if isinstance(payload, Erased) else ADAPTER,
        consent=not isinstance(payload, Erased),
        occurred_at=_BEGAN + timedelta(seconds=20 * sequence),
        payload=payload,
    )
    return Redactor().event(event, CUSTOMER)
