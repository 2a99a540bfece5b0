"""What curation and the triggers read of the dataset, and the conversations that were chosen. Streams it.

The rules themselves are in :mod:`pipelines.curation`. Of all conversations one record each is held, of the chosen
ones their contexts or turns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from negotiation.roles import Role
from negotiation.scenario import Context, Turn
from pipelines import conversations
from pipelines.config import CurationSettings
from pipelines.curation import Candidate, Curated, curate
from training.recorded import Recorded

_CANDIDATE = ["conversation_id", "tenant", "customer", "source", "consent", "closed_at", "turns"]


def curated(directory: Path, scenario: str, settings: CurationSettings, now: datetime, *, room: int) -> Curated:
    """The conversations of a scenario that a round may learn from, at most ``room``."""
    return curate(map(_candidate, _rows(directory, _CANDIDATE, scenario)), settings, now, room=room)


def contexts_of(directory: Path, scenario: str, chosen: Sequence[str]) -> list[Context]:
    """The chosen conversations' contexts, in their order. One erased meanwhile is left out."""
    wanted = frozenset(chosen)
    found = {
        row["conversation_id"]: Context.model_validate_json(row["context"])
        for row in _rows(directory, ["conversation_id", "context"], scenario)
        if row["conversation_id"] in wanted
    }
    return [found[identity] for identity in chosen if identity in found]


def live_conversations(directory: Path, scenario: str, chosen: Collection[str]) -> Iterator[Recorded]:
    """Those of the chosen conversations that real customers had, whole."""
    wanted = frozenset(chosen)
    for row in _rows(directory, ["conversation_id", "context", "turns"], scenario, "live"):
        if row["conversation_id"] in wanted:
            turns = tuple(
                Turn(role=Role(turn["role"]), text=turn["text"], shown=turn["shown"]) for turn in row["turns"]
            )
            yield Recorded(row["conversation_id"], Context.model_validate_json(row["context"]), turns)


def signed_outcomes(directory: Path, scenario: str, adapter: str, since: datetime) -> tuple[int, int]:
    """Live conversations with ``adapter`` closed after ``since`` whose outcome was signed, and how many succeeded.

    Consent is no matter here: nothing is learned from them.
    """
    count = successes = 0
    for row in _rows(directory, ["adapter", "closed_at", "success", "outcome_signed"], scenario, "live"):
        known = row["outcome_signed"] and row["success"] is not None
        if known and row["adapter"] == adapter and row["closed_at"] > since:
            count += 1
            successes += row["success"]
    return count, successes


def _candidate(row: dict[str, Any]) -> Candidate:
    return Candidate(
        conversation_id=row["conversation_id"],
        tenant=row["tenant"],
        customer=row["customer"],
        source=row["source"],
        consent=row["consent"],
        closed_at=row["closed_at"],
        said=[turn["text"] for turn in row["turns"] if turn["role"] == Role.COUNTERPART],
    )


def _rows(directory: Path, columns: list[str], scenario: str, source: str | None = None) -> Iterator[dict[str, Any]]:
    return conversations.rows(directory, columns, scenario=scenario, source=source)
