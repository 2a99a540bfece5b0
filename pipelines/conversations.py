"""Reading the dataset back: its rows, and its summary. Streams it, in flat memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negotiation.scenario import CloseReason
from pipelines.dataset_files import held, part_rows, read_manifest

_MAY_USE = ["consent", "source"]


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
    for row in rows(directory, columns, scenario=scenario, source=source):
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


def count_trainable(directory: Path, scenario: str) -> int:
    """Finished conversations of a scenario that training may use: with consent, and no replay.

    Replayed corpora are somebody else's data, and their licence may forbid training on them.
    """
    return sum(row["consent"] and row["source"] != "replay" for row in rows(directory, _MAY_USE, scenario=scenario))


def rows(
    directory: Path, columns: list[str], *, scenario: str | None = None, source: str | None = None
) -> Iterator[dict[str, Any]]:
    """The newest version's rows with ``columns``; nothing is published meanwhile.

    Raises DatasetDamaged, and DatasetInUse.
    """
    wanted = [*columns, *({"source"} - set(columns) if source else ())]
    with held(directory):
        for part in read_manifest(directory).parts:
            if scenario is None or part.scenario == scenario:
                for row in part_rows(directory, part, wanted):
                    if source is None or row["source"] == source:
                        yield row


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
