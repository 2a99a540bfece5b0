"""Reading the dataset back: its summary, and the contexts that a round calibrates on. Streams it, in flat memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from negotiation.scenario import CloseReason, Context
from pipelines.dataset import SCHEMA


@dataclass(frozen=True)
class DatasetSummary:
    """Figures of a dataset, each view (one side of one conversation) counted once.

    ``points`` are the agent's chair's own, 0 where there was no deal; means leave out views whose points nobody
    reported. ``pareto`` is over deals with both sides' views known. None where there is nothing to divide by.
    """

    views: int
    deals: int
    agreed_on_no_deal: int
    deal_rate: float | None
    mean_points: float | None
    mean_points_of_deals: float | None
    pareto_rate: float | None
    success_rate: float | None

    def lines(self) -> list[str]:
        """The figures for a reader, one each."""

        def show(value: float | None, form: str) -> str:
            return "unknown" if value is None else form.format(value)

        return [
            f"{self.views:,} views",
            f"{show(self.deal_rate, '{:.2%}').replace('%', ' %')} deals",
            f"{show(self.mean_points, '{:,.3f}')} points over all",
            f"{show(self.mean_points_of_deals, '{:,.3f}')} over agreed",
            f"{show(self.pareto_rate, '{:.2%}').replace('%', ' %')} Pareto-optimal",
            f"{self.agreed_on_no_deal:,} agreed on no deal",
        ]

    def __str__(self) -> str:
        return ", ".join(self.lines())


def summarise(directory: Path, *, scenario: str | None = None, source: str | None = None) -> DatasetSummary:
    """Count over the whole dataset, or over one scenario and one source (``live``, ``simulated``, ``replay``)."""
    views = deals = walked = known = known_deals = pareto_known = pareto = success_known = successes = 0
    points = deal_points = 0.0
    columns = ["agreed", "success", "points_agent", "pareto_optimal", "closed_reason"]
    for row in _rows(directory, columns, scenario, source):
        views += 1
        deals += row["agreed"]
        walked += row["closed_reason"] == CloseReason.WALKED_AWAY
        if row["points_agent"] is not None:
            known += 1
            points += row["points_agent"]
            if row["agreed"]:
                known_deals += 1
                deal_points += row["points_agent"]
        if row["agreed"] and row["pareto_optimal"] is not None:
            pareto_known += 1
            pareto += row["pareto_optimal"]
        if row["success"] is not None:
            success_known += 1
            successes += row["success"]
    return DatasetSummary(
        views=views,
        deals=deals,
        agreed_on_no_deal=walked,
        deal_rate=_share(deals, views),
        mean_points=_share(points, known),
        mean_points_of_deals=_share(deal_points, known_deals),
        pareto_rate=_share(pareto, pareto_known),
        success_rate=_share(successes, success_known),
    )


def finished_contexts(directory: Path, scenario: str, *, limit: int) -> list[tuple[str, Context]]:
    """Conversation id and context of the newest ``limit`` finished conversations that training may use.

    Left out are conversations without consent, and replayed corpora: they are somebody else's data, and its licence
    may forbid training on it.
    """
    found: list[tuple[int, str, str]] = []
    for row in _rows(directory, ["conversation_id", "context", "source", "consent", "last_offset"], scenario, None):
        if row["source"] != "replay" and row["consent"]:
            found.append((row["last_offset"], row["conversation_id"], row["context"]))
        if len(found) > 4 * limit:
            found = sorted(found)[-limit:]
    return [(identity, Context.model_validate_json(context)) for _, identity, context in sorted(found)[-limit:]]


def count_trainable(directory: Path, scenario: str) -> int:
    """Finished conversations of a scenario that a round may learn from: see :func:`finished_contexts`."""
    parts = _parts(directory)
    if not parts:
        return 0
    trainable = (ds.field("scenario") == scenario) & (ds.field("source") != "replay") & ds.field("consent")
    return int(ds.dataset(parts, schema=SCHEMA, format="parquet").count_rows(filter=trainable))


def _parts(directory: Path) -> list[str]:
    return sorted(str(part) for part in directory.glob("part-*.parquet"))


def _rows(directory: Path, columns: list[str], scenario: str | None, source: str | None) -> Iterator[dict[str, Any]]:
    parts = _parts(directory)
    if not parts:
        return
    wanted: Any = None
    for name, value in (("scenario", scenario), ("source", source)):
        if value is not None:
            clause = ds.field(name) == value
            wanted = clause if wanted is None else wanted & clause
    batch: pa.RecordBatch
    for batch in ds.dataset(parts, schema=SCHEMA, format="parquet").to_batches(columns=columns, filter=wanted):
        yield from batch.to_pylist()


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
