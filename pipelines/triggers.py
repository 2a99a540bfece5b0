"""When a new round starts, and why. Pure: figures in, a finding with its reason out.

By drift: the champion's success in live conversations with signed outcomes is *shown* to be under what the gate
measured when it was promoted, that is, a one-sided Wilson bound (Wilson 1927) on it is lower. By count: enough
conversations are new. By time: the last round is old enough, and anything is new. The first that holds is named, in
that order.

Left out on purpose: correction for looking again and again. A false alarm costs one round, whose gate promotes
nothing that is not better.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from scipy.stats import binomtest

from pipelines.config import PipelineSettings


class Trigger(StrEnum):
    """What started a round. ``manual``: somebody did."""

    DRIFT = "drift"
    COUNT = "count"
    TIME = "time"
    MANUAL = "manual"


@dataclass(frozen=True)
class Champion:
    """The agent's champion, and its success in the gate that promoted it (None if none ever did)."""

    name: str
    gate_success: float | None


@dataclass(frozen=True)
class Evidence:
    """What happened since the last round, or since the worker started if there was none.

    ``outcomes`` are live conversations with the champion whose signed outcome is known.
    """

    new_conversations: int
    elapsed: timedelta
    champion: Champion | None = None
    outcomes: int = 0
    successes: int = 0


@dataclass(frozen=True)
class Finding:
    """``trigger`` is None while no round is due; ``reason`` says why, or what is missing."""

    trigger: Trigger | None
    reason: str


def find_trigger(evidence: Evidence, settings: PipelineSettings) -> Finding:
    """Whether a round is due."""
    if drift := _drift(evidence, settings):
        return Finding(Trigger.DRIFT, drift)
    new, needed = evidence.new_conversations, settings.min_conversations
    if new >= needed:
        return Finding(Trigger.COUNT, f"{new} conversations are new, {needed} start a round")
    hours, wanted = evidence.elapsed.total_seconds() / 3600, settings.round_every_hours
    if wanted is not None and hours >= wanted and new:
        return Finding(Trigger.TIME, f"{hours:.1f} hours since the last round, and {new} conversations are new")
    return Finding(None, f"{new} of {needed} conversations are new")


def upper_bound(successes: int, count: int, confidence: float) -> float:
    """The one-sided Wilson upper bound of a rate. ``count`` must be positive."""
    interval = binomtest(successes, count, alternative="less").proportion_ci(confidence, method="wilson")
    return float(interval.high)


def _drift(evidence: Evidence, settings: PipelineSettings) -> str | None:
    champion, count = evidence.champion, evidence.outcomes
    if champion is None or champion.gate_success is None or count < settings.drift_min_conversations:
        return None
    bound = upper_bound(evidence.successes, count, settings.drift_confidence)
    if bound >= champion.gate_success:
        return None
    return (
        f"{champion.name} succeeded in {evidence.successes} of {count} live conversations with signed outcomes: at "
        f"most {bound:.1%} ({settings.drift_confidence:.0%} bound), and the gate measured {champion.gate_success:.1%}"
    )
