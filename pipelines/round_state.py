"""What a round remembers on disk, so that one that was interrupted goes on instead of starting over.

One folder per round under ``rounds/``, named by its version, with ``state.json`` replaced atomically at each step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from negotiation.roles import Role
from pipelines.gate import GateDecision, Interval
from pipelines.triggers import Champion, Trigger
from training.records import Price

STATE_FILE = "state.json"


class Phase(StrEnum):
    """Where a round stands; in order."""

    CALIBRATING = "calibrating"
    REFRESHING = "refreshing"
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


@dataclass(frozen=True)
class DatasetReference:
    """Which dataset a round learned from: its version, and the digest of its content."""

    version: str
    sha256: str


@dataclass(frozen=True)
class RefreshRecord:
    """What became of the counterpart's warm start on real customers' words; ``reason`` is a sentence.

    ``turns`` are the customers' own, of training and held-out conversations. Perplexities are over the held-out
    ones' own tokens, with the champion and with what was trained; None where nothing was.
    """

    applied: bool
    reason: str
    turns: int
    conversations: int = 0
    held_out: int = 0
    perplexity_before: float | None = None
    perplexity_after: float | None = None

    def figures(self) -> dict[str, float]:
        """All that is a number, by name."""
        known = {"perplexity_before": self.perplexity_before, "perplexity_after": self.perplexity_after}
        return {
            "applied": float(self.applied),
            "turns": float(self.turns),
            **{name: value for name, value in known.items() if value is not None},
        }


class RoundState(BaseModel):
    """``champions``: the version of each role that this round starts from and is judged against.

    ``curation``: the figures of which conversations were chosen. ``lease_token``: of the worker that went on with it
    last; a worker with a smaller one may change nothing any more. Times are UTC.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    phase: Phase
    version: int
    run_id: str
    scenario: str
    champions: dict[Role, int]
    conversations: int
    trigger: Trigger = Trigger.MANUAL
    started_at: datetime | None = None
    finished_at: datetime | None = None
    lease_token: int = 0
    dataset: DatasetReference | None = None
    curation: dict[str, int] = {}
    refresh: RefreshRecord | None = None
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


def agent_champion(rounds: Path) -> Champion | None:
    """The agent's champion after the newest finished round, with its success in the gate that promoted it.

    None before the first round. A promotion by hand is not seen here.
    """
    name = None
    for result in _results(rounds):
        verdict = result.verdicts.get(Role.AGENT)
        if verdict is None:
            continue
        name = name or (verdict.candidate if verdict.promoted else verdict.champion)
        if verdict.promoted and verdict.candidate == name:
            return Champion(name, verdict.after["success"].mean)
    return None if name is None else Champion(name, None)


def _results(rounds: Path) -> Iterator[RoundResult]:
    """Of finished rounds, the newest first."""
    for path in sorted(rounds.glob(f"[0-9]*/{STATE_FILE}"), reverse=True):
        state = load_state(path.parent)
        if state is not None and state.result is not None:
            yield state.result


def write_atomically(path: Path, text: str) -> None:
    """A reader sees the old text or the new one, whole, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as sink:
        sink.write(text)
        sink.flush()
        os.fsync(sink.fileno())
    temporary.replace(path)
