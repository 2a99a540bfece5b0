"""Events of earlier writers are read, and earlier readers pass over what is new."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.events import (
    SCHEMA_VERSION,
    Approval,
    ConversationEvent,
    Guarded,
    Message,
    Offer,
    UnreadableEvent,
    read_event,
)
from negotiation.moves import Move
from negotiation.roles import Role

OLD_MESSAGE = {"type": "message", "role": "agent", "text": "Hi.", "shown": "Hi.", "prompt_tokens": 3}
OLD_OFFER = {
    "type": "offer",
    "role": "agent",
    "move": {"kind": "offer", "arguments": ["van", "9"]},
    "binding": True,
    "rejected": None,
}


def test_events_without_the_newer_fields_are_read():
    for payload in (OLD_MESSAGE, OLD_OFFER):
        body = {"tenant": "t", "conversation_id": "c", "sequence": 0, "payload": payload}
        event = ConversationEvent.model_validate_json(json.dumps(body))
        assert event.schema_version == SCHEMA_VERSION
    assert Message.model_validate(OLD_MESSAGE).guarded is None
    assert Offer.model_validate(OLD_OFFER).approval is None


def test_only_optional_fields_were_added():
    message = Message(role=Role.AGENT, text="Hi.", shown="Hi.", guarded=Guarded.REPLACED)
    offer = Offer(role=Role.AGENT, move=Move(kind="quit"), binding=True, approval=Approval.APPROVED)
    assert set(message.model_dump()) - {"completion_tokens"} == {
        *OLD_MESSAGE,
        *("guarded", "token_ids", "logprobs", "redacted"),
    }
    assert set(offer.model_dump()) == {*OLD_OFFER, "approval", "approval_note"}


def test_a_version_above_ours_is_refused_without_its_words():
    body = {"tenant": "t", "conversation_id": "c", "sequence": 0, "payload": OLD_MESSAGE, "schema_version": 99}
    with pytest.raises(UnreadableEvent, match="schema_version: newer than 2"):
        read_event(json.dumps(body))
    with pytest.raises(UnreadableEvent, match=r"payload\.message\.text: string_type") as refused:
        read_event(json.dumps({**body, "schema_version": 1, "payload": {**OLD_MESSAGE, "text": 4711}}))
    assert "4711" not in str(refused.value)


@given(key=st.text(min_size=1))
@pytest.mark.parametrize(
    ("payload", "field", "path"),
    [
        ({"type": "opened", "adapter": "a"}, "labels", "payload.opened.labels.*: string_type"),
        ({"type": "outcome", "agreed": True}, "rewards", "payload.outcome.rewards.*: "),
        ({"type": "outcome", "agreed": True}, "points", "payload.outcome.points.*: "),
    ],
)
def test_keys_that_come_from_the_record_are_not_in_the_reason(payload, field, path, key):
    """Whatever they are, also words that are names of fields elsewhere."""
    context = {
        "scenario": "telesales",
        "seed": 1,
        "first_speaker": "agent",
        "turn_limit": 3,
        "public": {},
        "views": {},
    }
    body = {"tenant": "t", "conversation_id": "c", "sequence": 0}
    body["payload"] = {**payload, "context": context, field: {key: ["no such value"]}}
    with pytest.raises(UnreadableEvent) as refused:
        read_event(json.dumps(body))
    assert str(refused.value).startswith(path)
    assert str(refused.value).removeprefix(path) in {"", "enum", "float_type"}


def test_events_of_version_one_do_not_say_that_training_may_use_them():
    body = {"schema_version": 1, "tenant": "t", "conversation_id": "c", "sequence": 0, "payload": OLD_MESSAGE}
    event = read_event(json.dumps(body))
    assert (event.schema_version, event.consent, event.adapter) == (1, False, None)
