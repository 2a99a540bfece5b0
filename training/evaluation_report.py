"""What an examination found, as plain data: tables of means and intervals, and the figures made of two of them.

Made by ``training.evaluation_suite``, drawn by ``training.evaluation_plots``. Every estimate is a mean with a
bootstrap interval over whole scenarios; None where no conversation has a value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from negotiation.roles import Role
from training.evaluation import METRICS, Estimate, EvaluationResult, paired_difference

SCHEMA_VERSION = 1
JUDGED, WARM_START, ACCEPT_EVERYTHING = "judged", "warm_start", "accept_everything"
"""The three policies of a report."""
TRAINING_PARTNER, FROZEN_WARM_START, ENDPOINT = "training_partner", "frozen_warm_start", "endpoint"
"""Groups of counterparts beside the splits of the pool."""

Figures = dict[str, Estimate | None]
"""Metric to mean and interval; None where no conversation has a value."""


@dataclass(frozen=True)
class GroupFigures:
    """One policy against one group of counterparts: over all of them, and split."""

    conversations: int
    overall: Figures
    by_family: dict[str, Figures]
    by_opponent: dict[str, Figures]


@dataclass(frozen=True)
class PolicyFigures:
    """One policy in one chair. ``average`` is over the groups that the report names in ``averaged_over``."""

    policy: str
    role: Role
    average: Figures
    groups: dict[str, GroupFigures]


@dataclass(frozen=True)
class SuiteReport:
    """The examination of one adapter, as plain data.

    ``policies`` and ``mismatches`` by policy (judged, warm start, accept everything); ``mismatch_by_partner`` is the
    judged adapter's; ``gains`` are judged minus warm start, paired, by group. ``chairs`` has the adapters in their
    own and in each other's chair, by a name that says who sat where; always against held-out counterparts.
    ``absent_splits`` were asked for and have nobody for the other chair.
    """

    schema_version: int
    scenario: str
    role: Role
    adapter: str
    counterpart_adapter: str | None
    training_partners: tuple[str, ...]
    seeds: tuple[int, ...]
    confidence: float
    averaged_over: tuple[str, ...]
    absent_splits: tuple[str, ...]
    policies: dict[str, PolicyFigures]
    chairs: dict[str, PolicyFigures]
    mismatches: dict[str, Estimate | None]
    mismatch_by_partner: dict[str, Estimate | None]
    gains: dict[str, Figures]

    @property
    def mismatch(self) -> Estimate | None:
        """Success@1 against the training partner minus success against held-out counterparts. None if either is not
        in the report. Positive: the adapter does better against whom it was trained with."""
        return self.mismatches[JUDGED]

    def to_json(self) -> str:
        """Plain JSON: no NaN, null where there is no value."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> SuiteReport:
        """The report back. Raises ValueError for another schema version."""
        version = json.loads(text).get("schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"schema_version is {version!r}, this program reads {SCHEMA_VERSION}: evaluate again with it"
            )
        return TypeAdapter(SuiteReport).validate_json(text)


def mismatch(
    partner: EvaluationResult, held_out: EvaluationResult | None, confidence: float = 0.95
) -> Estimate | None:
    """Success@1 against the training partner minus success against held-out counterparts, paired by scenario."""
    return None if held_out is None else known(paired_difference(partner, held_out, "success", confidence))


def figures(result: EvaluationResult, confidence: float = 0.95) -> Figures:
    """Every metric of a result."""
    return {metric: known(result.estimate(metric, confidence)) for metric in METRICS}


def policy_figures(
    results: Mapping[str, EvaluationResult], averaged: Sequence[str], confidence: float = 0.95
) -> PolicyFigures:
    """The tables of one policy from its results by group; only the groups in ``averaged`` enter the average."""
    first = next(iter(results.values()))
    episodes = tuple(episode for group in averaged for episode in results[group].episodes)
    return PolicyFigures(
        policy=first.adapter,
        role=first.role,
        average=figures(EvaluationResult(first.adapter, first.role, first.scenario, episodes), confidence),
        groups={
            group: GroupFigures(
                conversations=len(result.episodes),
                overall=figures(result, confidence),
                by_family={name: figures(part, confidence) for name, part in result.by_family().items()},
                by_opponent={name: figures(part, confidence) for name, part in result.by_opponent().items()},
            )
            for group, result in results.items()
        },
    )


def paired_figures(first: EvaluationResult, second: EvaluationResult, confidence: float = 0.95) -> Figures:
    """``first`` minus ``second`` in every metric, paired by scenario."""
    return {metric: known(paired_difference(first, second, metric, confidence)) for metric in METRICS}


def known(estimate: Estimate) -> Estimate | None:
    """None in place of NaN, which JSON does not have."""
    return None if math.isnan(estimate.mean) else estimate
