"""What a finished round leaves in MLflow and in its report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel

from negotiation.roles import Role
from pipelines.registry import MlflowRegistry
from pipelines.report import write_report
from pipelines.round_state import RoundResult, RoundState

REPORT_FILE = "report.html"
Curves = Mapping[Role, Sequence[Mapping[str, float]]]


def log_round(
    registry: MlflowRegistry,
    directory: Path,
    state: RoundState,
    result: RoundResult,
    settings: Mapping[str, object],
    curves: Curves,
) -> None:
    """Write the report into the round's ``directory``, and all of it to the round's run. Safe to repeat.

    ``settings`` are further parameters, by name; ``curves`` metrics of training by role and step.
    """
    params = {**_params(state, result), **settings}
    write_report(directory / REPORT_FILE, result, curves, params)
    registry.log_params(state.run_id, params)
    registry.log_metrics(state.run_id, _metrics(state, result, curves), int(time.time() * 1000))
    registry.log_file(state.run_id, directory / REPORT_FILE)


def _params(state: RoundState, result: RoundResult) -> dict[str, object]:
    return {
        "scenario": state.scenario,
        **{f"champion.{role}": version for role, version in state.champions.items()},
        "live_contexts": result.trained_on,
        "skipped_contexts": state.skipped_contexts,
        "trigger": str(state.trigger),
        "refresh": state.refresh.reason if state.refresh else "none",
        **(
            {"dataset.version": state.dataset.version, "dataset.sha256": state.dataset.sha256}
            if state.dataset
            else {}
        ),
    }


def _metrics(state: RoundState, result: RoundResult, curves: Curves) -> list[tuple[str, float, int]]:
    """Rows of name, value and step."""
    rows = [
        (f"{role}/{name}", value, step)
        for role, steps in curves.items()
        for step, metrics in enumerate(steps)
        for name, value in metrics.items()
    ]
    for role, verdict in result.verdicts.items():
        for where in ("before", "after", "difference"):
            for metric, interval in getattr(verdict, where).items():
                rows += [(f"gate/{role}/{where}/{metric}/{k}", v, 0) for k, v in asdict(interval).items()]
    if result.price is not None:
        rows += [(f"price/{name}", value, 0) for name, value in result.price.figures().items()]
    rows += [(f"curation.{name}", float(count), 0) for name, count in state.curation.items()]
    if state.refresh is not None:
        rows += [(f"refresh.{name}", value, 0) for name, value in state.refresh.figures().items()]
    return rows


def flat(prefix: str, settings: BaseModel) -> dict[str, object]:
    """A settings model as parameters named ``prefix.key``."""

    def walk(key: str, value: object) -> dict[str, object]:
        if isinstance(value, dict):
            return {name: leaf for part, item in value.items() for name, leaf in walk(f"{key}.{part}", item).items()}
        return {key: value}

    return walk(prefix, settings.model_dump(mode="json"))
