"""What a conversation is in the dataset: one row, and the digest by which two datasets are told to say the same.

Pure: no file is touched here. The content hash does not depend on the order of the conversations, so that a dataset
read from several partitions equals one read from a file, and one conversation more or less is one step rather than
a pass over everything. Offsets, versions and times are left out of it: a repeated publication has others and says the
same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from negotiation.events import Closed, ConversationEvent, Message, Offer, Opened, OutcomeReported
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context

SCHEMA = pa.schema(
    [
        ("conversation_id", pa.string()),
        ("tenant", pa.string()),
        ("customer", pa.string()),
        ("scenario", pa.string()),
        ("source", pa.string()),
        ("adapter", pa.string()),
        ("labels", pa.string()),
        ("consent", pa.bool_()),
        ("context", pa.string()),
        (
            "turns",
            pa.list_(
                pa.struct(
                    [
                        ("role", pa.string()),
                        ("text", pa.string()),
                        ("shown", pa.string()),
                        ("token_ids", pa.list_(pa.int32())),
                        ("logprobs", pa.list_(pa.float64())),
                        ("redacted", pa.list_(pa.string())),
                    ]
                )
            ),
        ),
        ("n_turns", pa.int32()),
        ("closed_reason", pa.string()),
        ("agreement", pa.string()),
        ("agreed", pa.bool_()),
        ("success", pa.bool_()),
        ("reward_agent", pa.float64()),
        ("reward_counterpart", pa.float64()),
        ("points_agent", pa.float64()),
        ("points_counterpart", pa.float64()),
        ("pareto_optimal", pa.bool_()),
        ("outcome_signed", pa.bool_()),
        ("note", pa.string()),
        ("opened_at", pa.timestamp("us", tz="UTC")),
        ("closed_at", pa.timestamp("us", tz="UTC")),
        ("partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("version", pa.int64()),
    ]
)
"""One row per conversation. ``context`` and ``labels`` are JSON; the context holds the counterpart's view where the
opening or the outcome told it. ``customer`` is a pseudonym. ``consent``: training may use it. Null means unknown;
points are in the scenario's unit, 0 without an agreement. Offsets are of the log's ``partition``; ``version`` is the
dataset version that the row came with."""

_NOT_CONTENT = frozenset({"opened_at", "closed_at", "partition", "first_offset", "last_offset", "version"})
_SCENARIO = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class MalformedConversation(ValueError):
    """The events of a conversation contradict each other. The message holds none of their words."""


def check_opening(event: ConversationEvent) -> None:
    """Raises MalformedConversation for a scenario name that can not be the name of a folder."""
    if isinstance(event.payload, Opened) and not _SCENARIO.fullmatch(event.payload.context.scenario):
        raise MalformedConversation("the scenario's name has more than lower-case letters, digits, - and _")


def conversation_row(events: Sequence[ConversationEvent]) -> dict[str, Any]:
    """The dataset row, offsets and version aside, of one conversation's events in order.

    The last outcome reported counts. Raises MalformedConversation.
    """
    opened, closed = _only(events, Opened), _only(events, Closed)
    begin, end = opened.payload, closed.payload
    assert isinstance(begin, Opened)
    assert isinstance(end, Closed)
    if events[0] is not opened:
        raise MalformedConversation("its first event does not open it")
    if any(event.tenant != opened.tenant for event in events):
        raise MalformedConversation("its events are of several tenants")
    if any(isinstance(event.payload, Message | Offer) and event.sequence > closed.sequence for event in events):
        raise MalformedConversation("it goes on after it was closed")
    messages = [event.payload for event in events if isinstance(event.payload, Message)]
    row = {
        "conversation_id": opened.conversation_id,
        "tenant": opened.tenant,
        "customer": begin.customer,
        "scenario": begin.context.scenario,
        "source": begin.source,
        "adapter": begin.adapter,
        "labels": json.dumps(begin.labels, sort_keys=True),
        "consent": opened.consent,
        "context": begin.context.model_dump_json(),
        "turns": [
            {
                "role": str(message.role),
                "text": message.text,
                "shown": message.shown,
                "token_ids": list(message.token_ids),
                "logprobs": list(message.logprobs),
                "redacted": list(message.redacted),
            }
            for message in messages
        ],
        "n_turns": len(messages),
        "closed_reason": str(end.reason),
        "agreement": None if end.agreement is None else str(end.agreement),
        "opened_at": opened.occurred_at,
        "closed_at": closed.occurred_at,
    }
    outcomes = [event.payload for event in events if isinstance(event.payload, OutcomeReported)]
    return with_outcome(row, outcomes[-1] if outcomes else OutcomeReported(agreed=end.reason is CloseReason.AGREED))


def with_outcome(row: Mapping[str, Any], outcome: OutcomeReported) -> dict[str, Any]:
    """The row as it is once ``outcome`` is known, in place of what was known before."""
    context = Context.model_validate_json(row["context"])
    if outcome.counterpart_view is not None:
        views = {**context.views, Role.COUNTERPART: dict(outcome.counterpart_view)}
        context = context.model_copy(update={"views": views})
    return {
        **row,
        "context": context.model_dump_json(),
        "agreed": outcome.agreed,
        "success": outcome.success,
        "reward_agent": outcome.rewards.get(Role.AGENT),
        "reward_counterpart": outcome.rewards.get(Role.COUNTERPART),
        "points_agent": outcome.points.get(Role.AGENT),
        "points_counterpart": outcome.points.get(Role.COUNTERPART),
        "pareto_optimal": outcome.pareto_optimal,
        "outcome_signed": outcome.signed,
        "note": outcome.note,
    }


def row_digest(row: Mapping[str, Any]) -> bytes:
    """sha256 over what the row says: 32 bytes, the same before and after a way through Parquet."""
    content = {name: row[name] for name in SCHEMA.names if name not in _NOT_CONTENT}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).digest()


class ContentHash:
    """A hash of a set that elements are added to and taken from: LtHash with 1,024 lanes of 16 bits.

    Each element's digest is stretched to the lanes and added, lane by lane, modulo 2^16 (Bellare and Micciancio 1997,
    "A New Paradigm for Collision-Free Hashing"; the parameters are of Lewi et al. 2019, IACR ePrint 2019/227).
    ``state``: 2,048 bytes to go on from.
    """

    SIZE = 2048

    def __init__(self, state: bytes = b"\0" * SIZE) -> None:
        self._lanes = np.frombuffer(state, dtype="<u2").copy()

    def add(self, digest: bytes) -> None:
        """One more element."""
        self._lanes += self._stretched(digest)

    def remove(self, digest: bytes) -> None:
        """One element less. That it was there is the caller's to know."""
        self._lanes -= self._stretched(digest)

    @property
    def state(self) -> bytes:
        """What the constructor takes."""
        return self._lanes.tobytes()

    def hexdigest(self) -> str:
        """64 hexadecimal digits, equal for equal sets."""
        return hashlib.sha256(self.state).hexdigest()

    def _stretched(self, digest: bytes) -> np.ndarray[Any, Any]:
        return np.frombuffer(hashlib.shake_256(digest).digest(self.SIZE), dtype="<u2")


def _only(events: Sequence[ConversationEvent], kind: type[Opened] | type[Closed]) -> ConversationEvent:
    found = [event for event in events if isinstance(event.payload, kind)]
    if len(found) != 1:
        raise MalformedConversation(f"it was {kind.__name__.lower()} {len(found)} times")
    return found[0]
