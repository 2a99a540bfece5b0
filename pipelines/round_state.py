"""What a round remembers on disk, so that one that was interrupted goes on instead of starting over.

One folder per round under ``rounds/``, named by its version, with ``state.json`` replaced atomically at each step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from negotiation.roles import Role
from pipelines.gate import GateDecision, Interval
from training.records import Price

STATE_FILE = "state.json"


class Phase(StrEnum):
    """Where a round stands; in order."""

    CALIBRATING = "calibrating"
    TRAINING = "training"
    EVALUATING = "evaluating"
    REGISTERING = "registering"
    DONE = "done"
    SUPERSEDED = "superseded"


@dataclass(frozen=True)
class Progress:
    """What a bar or a status file shows. ``metrics`` are the latest per role; ``step`` counts up to ``of``."""

    phase: str
    step: int
    of: int
    version: int | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class RoleVerdict:
    """How one role's candidate did against counterparts that training never met. Intervals are by metric."""

    role: Role
    champion: str
    candidate: str
    promoted: bool
    reasons: tuple[str, ...]
    metric: str
    before: Mapping[str, Interval]
    after: Mapping[str, Interval]
    difference: Mapping[str, Interval]
    by_opponent: Mapping[str, Interval]
    conversations: int
    scenarios: int

    @classmethod
    def of(cls, role: Role, champion: str, candidate: str, decision: GateDecision) -> RoleVerdict:
        return cls(
            role=role,
            champion=champion,
            candidate=candidate,
            promoted=decision.promote,
            reasons=decision.reasons,
            metric=decision.metric,
            before=decision.champion,
            after=decision.candidate,
            difference=decision.differences,
            by_opponent=decision.by_opponent,
            conversations=decision.pairs,
            scenarios=decision.scenarios,
        )


@dataclass(frozen=True)
class RoundResult:
    """What a finished round came to. ``trained_on``: live contexts that training drew on; ``price``: of training."""

    version: int
    run_id: str
    scenario: str
    trained_on: int
    steps: int
    seconds: float
    verdicts: Mapping[Role, RoleVerdict]
    report: str
    price: Price | None = None

    @property
    def promoted(self) -> tuple[str, ...]:
        """Names of the adapters that became champions."""
        return tuple(verdict.candidate for verdict in self.verdicts.values() if verdict.promoted)


class RoundState(BaseModel):
    """``champions``: the version of each role that this round starts from and is judged against."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    phase: Phase
    version: int
    run_id: str
    scenario: str
    champions: dict[Role, int]
    conversations: int
    skipped_contexts: int = 0
    seconds: float = 0.0
    verdicts: dict[Role, RoleVerdict] = {}
    result: RoundResult | None = None

    @property
    def finished(self) -> bool:
        return self.phase in (Phase.DONE, Phase.SUPERSEDED)


def round_directory(rounds: Path, version: int) -> Path:
    return rounds / f"{version:06d}"


def load_state(directory: Path) -> RoundState | None:
    path = directory / STATE_FILE
    return RoundState.model_validate_json(path.read_bytes()) if path.exists() else None


def save_state(directory: Path, state: RoundState) -> None:
    write_atomically(directory / STATE_FILE, state.model_dump_json(indent=1))


def latest_state(rounds: Path) -> RoundState | None:
    """The newest round's, or None before the first."""
    found = sorted(rounds.glob(f"[0-9]*/{STATE_FILE}"))
    return load_state(found[-1].parent) if found else None


def write_atomically(path: Path, text: str) -> None:
    """A reader sees the old text or the new one, whole, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as sink:
        sink.write(text)
        sink.flush()
        os.fsync(sink.fileno())
    temporary.replace(path)
