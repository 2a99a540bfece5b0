"""Tables and plots of ``bench/mismatch.py``'s results. Imported by it; trains and plays nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

Results = Mapping[tuple[str, str, int], Mapping[str, Any]]
"""By scenario, method and training seed."""
Read = Callable[[Mapping[str, Any]], float | None]
RESAMPLES = 4000
REFERENCE = "bilateral"
SUCCESS, AGREED, REWARD = "success", "agreed", "own_reward"
COLUMNS: dict[str, tuple[str, Read]] = {
    "held-out success": ("held_out", lambda e: float(e["success"])),
    "held-out agreement": ("held_out", lambda e: float(e["agreed"])),
    "held-out own reward": ("held_out", lambda e: e["own_reward"]),
    "held-out joint reward": ("held_out", lambda e: e["own_reward"] + e["other_reward"]),
    "Pareto share of deals": (
        "held_out",
        lambda e: None if e["pareto_optimal"] is None else float(e["pareto_optimal"]),
    ),
    "blocked offers a talk": ("held_out", lambda e: e["blocked_offers"]),
    "turns": ("held_out", lambda e: e["turns"]),
    "own tokens": ("held_out", lambda e: e["tokens"]),
    "success with its training partner": ("partner", lambda e: float(e["success"])),
    "success with the warm start": ("warm_started", lambda e: float(e["success"])),
    "success with the enterprise policy": ("enterprise", lambda e: float(e["success"])),
    "success with adversaries": ("adversary", lambda e: float(e["success"])),
    "adversaries' demands met": ("adversary", lambda e: None if e["injected"] is None else float(e["injected"])),
    "own reward with adversaries": ("adversary", lambda e: e["own_reward"]),
}


@dataclass(frozen=True)
class Interval:
    """A mean over training seeds and scenarios, with a 95 % interval that resamples both."""

    mean: float
    low: float
    high: float
    by_seed: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def write_report(results: Results, output: Path | None, console: Console) -> None:
    """Print the tables; with ``output`` also write ``mismatch.md``, ``.json`` and ``.png`` there."""
    scenarios = list(dict.fromkeys(scenario for scenario, _, _ in results))
    summary = {name: summarise(results, name) for name in scenarios}
    for name in scenarios:
        for table in (_levels(name, summary[name]), _differences(name, summary[name])):
            console.print(table)
    if output is None:
        return
    output.mkdir(parents=True, exist_ok=True)
    (output / "mismatch.json").write_text(json.dumps(_plain(summary), indent=1) + "\n", encoding="utf-8")
    (output / "mismatch.md").write_text("\n".join(_markdown(summary, results)), encoding="utf-8")
    _plot(summary, output / "mismatch.png")


Summary = dict[str, dict[str, dict[str, Interval]]]
"""``levels`` and ``differences``: method to column to interval. ``price``: method to means."""


def summarise(results: Results, scenario: str) -> Summary:
    """Levels of every method, and what the reference has more of than each other method."""
    methods = list(dict.fromkeys(method for name, method, _ in results if name == scenario))
    levels: dict[str, dict[str, Interval]] = {}
    differences: dict[str, dict[str, Interval]] = {}
    for method in methods:
        runs = _runs(results, scenario, method)
        levels[method] = {column: _interval(*_grid(runs, split, read)) for column, (split, read) in COLUMNS.items()}
        held_out = _grid(runs, "held_out", COLUMNS["held-out success"][1])
        partner = _grid(runs, "partner", COLUMNS["held-out success"][1])
        levels[method]["static-counterpart mismatch"] = _interval(_ratio(*partner) - _ratio(*held_out))
        if REFERENCE in methods and method != REFERENCE:
            shared = _seeds(results, scenario, REFERENCE) & _seeds(results, scenario, method)
            own, theirs = (_runs(results, scenario, one, shared) for one in (REFERENCE, method))
            differences[method] = {
                column: _interval(_ratio(*_grid(own, split, read)) - _ratio(*_grid(theirs, split, read)))
                for column, (split, read) in COLUMNS.items()
            }
    return {"levels": levels, "differences": differences, "price": _prices(results, scenario, methods)}


def _runs(
    results: Results, scenario: str, method: str, seeds: Collection[int] | None = None
) -> list[Mapping[str, Any]]:
    """By training seed; with ``seeds`` only those."""
    found = {seed: result for (name, one, seed), result in results.items() if (name, one) == (scenario, method)}
    return [found[seed] for seed in sorted(found) if seeds is None or seed in seeds]


def _seeds(results: Results, scenario: str, method: str) -> set[int]:
    return {seed for name, one, seed in results if (name, one) == (scenario, method)}


def _grid(runs: list[Mapping[str, Any]], split: str, read: Read) -> tuple[NDArray[Any], NDArray[Any]]:
    """Sums and counts of a value, [training seeds, evaluation scenarios]."""
    seeds = sorted({episode["seed"] for episode in runs[0]["episodes"][split]})
    place = {seed: column for column, seed in enumerate(seeds)}
    sums, counts = np.zeros((len(runs), len(seeds))), np.zeros((len(runs), len(seeds)))
    for row, run in enumerate(runs):
        for episode in run["episodes"][split]:
            value = read(episode)
            if value is not None:
                sums[row, place[episode["seed"]]] += value
                counts[row, place[episode["seed"]]] += 1
    return sums, counts


def _ratio(sums: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
    """Mean per training seed and scenario; NaN where there is no value."""
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _interval(sums: NDArray[Any], counts: NDArray[Any] | None = None) -> Interval:
    """Resamples training seeds (rows) and scenarios (columns), both with replacement."""
    if counts is None:
        counts = (~np.isnan(sums)).astype(float)
        sums = np.nan_to_num(sums)
    rng = np.random.default_rng(0)
    rows, columns = sums.shape
    by_row = rng.multinomial(rows, np.full(rows, 1 / rows), RESAMPLES).astype(float)
    by_column = rng.multinomial(columns, np.full(columns, 1 / columns), RESAMPLES).astype(float)
    drawn = np.einsum("rs,sc,rc->r", by_row, sums, by_column)
    number = np.einsum("rs,sc,rc->r", by_row, counts, by_column)
    means = drawn[number > 0] / number[number > 0]
    total = counts.sum()
    if not total:
        return Interval(float("nan"), float("nan"), float("nan"), ())
    low, high = np.quantile(means, (0.025, 0.975))
    per_seed = sums.sum(1) / np.maximum(counts.sum(1), 1)
    return Interval(float(sums.sum() / total), float(low), float(high), tuple(round(float(x), 4) for x in per_seed))


def _prices(results: Results, scenario: str, methods: list[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for method in methods:
        prices = [run["price"] for run in _runs(results, scenario, method) if "price" in run]
        if prices:
            mean = {
                "agent tokens sampled": np.mean([p["tokens_sampled"]["agent"] for p in prices]),
                "counterpart tokens sampled": np.mean([p["tokens_sampled"]["counterpart"] for p in prices]),
                "tokens trained": np.mean([sum(p["tokens_trained"].values()) for p in prices]),
                "seconds": np.mean([sum(p["seconds"].values()) for p in prices]),
            }
            found[method] = {name: round(float(value)) for name, value in mean.items()}
    return found


def _levels(scenario: str, summary: Summary) -> Table:
    table = Table("", *summary["levels"], title=scenario)
    for column in next(iter(summary["levels"].values())):
        table.add_row(column, *(str(row[column]) for row in summary["levels"].values()))
    return table


def _differences(scenario: str, summary: Summary) -> Table:
    table = Table("", *summary["differences"], title=f"{scenario}: {REFERENCE} minus ...")
    for column in COLUMNS:
        table.add_row(column, *(str(row[column]) for row in summary["differences"].values()))
    return table


def _markdown(summary: Mapping[str, Summary], results: Results) -> list[str]:
    lines: list[str] = []
    for scenario, found in summary.items():
        seeds = sorted({seed for name, _, seed in results if name == scenario})
        lines += [f"### {scenario}, training seeds {', '.join(map(str, seeds))}", ""]
        lines += _rows(found["levels"], list(next(iter(found["levels"].values()))))
        if found["differences"]:
            lines += [f"{REFERENCE} minus the other method, paired:", ""]
            lines += _rows(found["differences"], list(COLUMNS))
        lines += ["Price of training, mean of the seeds:", ""]
        lines += _rows(found["price"], list(next(iter(found["price"].values()), {})))
    return lines


def _rows(table: Mapping[str, Mapping[str, object]], columns: list[str]) -> list[str]:
    lines = ["| | " + " | ".join(table) + " |", "|---" * (len(table) + 1) + "|"]
    lines += [f"| {column} | " + " | ".join(str(row[column]) for row in table.values()) + " |" for column in columns]
    return [*lines, ""]


def _plain(summary: Mapping[str, Summary]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Interval):
            return {k: None if isinstance(v, float) and np.isnan(v) else v for k, v in asdict(value).items()}
        return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value

    return {name: plain(found) for name, found in summary.items()}


def _plot(summary: Mapping[str, Summary], path: Path) -> None:
    """Success of every method: held out (filled, with its interval) and with its training partner (hollow)."""
    figure = Figure(figsize=(10, 1.4 + 2.2 * len(summary)), layout="constrained")
    for axis, (scenario, found) in zip(
        figure.subplots(len(summary), 1, squeeze=False).flat, summary.items(), strict=True
    ):
        for height, row in enumerate(found["levels"].values()):
            held, partner = row["held-out success"], row["success with its training partner"]
            axis.plot((held.low, held.high), (height, height), color="#0072B2", linewidth=2)
            axis.plot(held.mean, height, "o", color="#0072B2", label="counterparts never met" if not height else None)
            axis.plot(
                partner.mean,
                height,
                "D",
                color="#D55E00",
                fillstyle="none",
                label=None if height else "training partner",
            )
            axis.plot(held.by_seed, [height + 0.22] * len(held.by_seed), "|", color="#555555", markersize=7)
        axis.set_yticks(range(len(found["levels"])), list(found["levels"]), fontsize=9)
        axis.invert_yaxis()
        axis.set_xlim(0, 1)
        axis.set_title(f"{scenario}: success of the agent (95 % interval; ticks: training seeds)", fontsize=10)
        axis.grid(axis="x", alpha=0.25)
    axis.set_xlabel("share of talks that the agent won", fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    with matplotlib.rc_context({"svg.hashsalt": "sparring"}):
        figure.savefig(path, dpi=110)
