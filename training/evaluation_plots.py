"""Two plots of an examination: success per counterpart, and agreement against own reward.

The second shows what the first hides: a policy that agrees to everything lies far right and low.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from training.evaluation import Estimate
from training.evaluation_report import ACCEPT_EVERYTHING, JUDGED, WARM_START, SuiteReport

SUCCESS_PLOT, AGREEMENT_PLOT = "success", "agreement"
_STYLES = {
    # Okabe and Ito's colours for the colour-blind; markers differ too, for print in grey.
    JUDGED: ("#0072B2", "o"),
    WARM_START: ("#E69F00", "s"),
    ACCEPT_EVERYTHING: ("#009E73", "^"),
}
_ROW_INCHES, _STEP = 0.42, 0.24
_GROUP_GAP = 0.7


def write_plots(report: SuiteReport, directory: Path) -> list[Path]:
    """Write both plots as PNG and SVG; returns the files. The same report gives the same bytes."""
    written = []
    figures = {SUCCESS_PLOT: success_figure(report), AGREEMENT_PLOT: agreement_figure(report)}
    with matplotlib.rc_context({"svg.hashsalt": "sparring", "svg.fonttype": "none"}):
        for name, figure in figures.items():
            for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                path = directory / f"{name}.{kind}"
                figure.savefig(path, format=kind, dpi=150, metadata=metadata)
                written.append(path)
    return written


def success_figure(report: SuiteReport) -> Figure:
    """Success@1 of the three policies against each counterpart, with intervals, group by group."""
    rows = list(_rows(report))
    figure = Figure(figsize=(8.5, 1.7 + _ROW_INCHES * max(height for height, _, _ in rows)), layout="constrained")
    axis = figure.subplots()
    for number, policy in enumerate(report.policies):
        colour, marker = _STYLES[policy]
        for height, group, opponent in rows:
            known = report.policies[policy].groups[group].by_opponent[opponent]["success"]
            if known is not None:
                _point(axis, known, height + (number - 1) * _STEP, colour, marker)
    axis.set_yticks(
        [height for height, _, _ in rows], [opponent_label(report, name) for _, _, name in rows], fontsize=9
    )
    for group in dict.fromkeys(group for _, group, _ in rows):
        top = min(height for height, of, _ in rows if of == group)
        # Beside the plot, on the line above the group's first row.
        axis.text(-0.015, top - 0.85, words(group), fontsize=9, weight="bold", ha="right", va="center",
                  transform=axis.get_yaxis_transform())  # fmt: skip
        axis.axhline(top - 0.85, color="#cccccc", linewidth=0.6)
    axis.set_ylim(max(height for height, _, _ in rows) + 0.7, -0.4)
    axis.set_xlim(-0.03, 1.03)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    axis.set_xlabel(f"Success@1, % of {len(report.seeds)} scenarios ({report.confidence:.0%} interval)")
    axis.grid(axis="x", alpha=0.3)
    _legend_and_title(figure, report, "success by counterpart")
    return figure


def agreement_figure(report: SuiteReport) -> Figure:
    """Agreement against own reward; a point is a policy against a counterpart, the large ones are averages."""
    figure = Figure(figsize=(8.5, 5.6), layout="constrained")
    axis = figure.subplots()
    # The judged adapter last, so that it lies on top where it plays like its warm start.
    for depth, (policy, of) in enumerate(reversed(report.policies.items()), start=3):
        colour, marker = _STYLES[policy]
        for group in of.groups.values():
            for figures in group.by_opponent.values():
                agreed, reward = figures["agreed"], figures["own_reward"]
                if agreed is not None and reward is not None:
                    axis.scatter(
                        agreed.mean, reward.mean, s=28, color=colour, marker=marker, alpha=0.45, linewidths=0
                    )
        agreed, reward = of.average["agreed"], of.average["own_reward"]
        if agreed is not None and reward is not None:
            axis.errorbar(
                agreed.mean,
                reward.mean,
                xerr=_arms(agreed),
                yerr=_arms(reward),
                fmt=marker,
                color=colour,
                markersize=11,
                markeredgecolor="black",
                capsize=3,
                zorder=depth,
            )
    axis.set_xlim(-0.03, 1.03)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    averaged = " and ".join(words(group) for group in report.averaged_over) or "no"
    axis.set_xlabel(
        "agreement, % of conversations\n"
        f"small: one counterpart; large: average over {averaged} counterparts, {report.confidence:.0%} interval"
    )
    axis.set_ylabel("own reward per conversation (between -1 and 1)")
    axis.grid(alpha=0.3)
    _legend_and_title(figure, report, "agreement and own reward")
    return figure


def policy_label(report: SuiteReport, policy: str) -> str:
    """How a policy is called for people: the judged adapter by its name."""
    return report.adapter if policy == JUDGED else words(policy)


def opponent_label(report: SuiteReport, name: str) -> str:
    """A counterpart's name without the role that all in a report share: ``fair-counterpart`` is ``fair``."""
    return name.removesuffix(f"-{report.role.other}")


def words(name: str) -> str:
    """``held_out`` as it is written in text."""
    return {"held_out": "held-out", "frozen_warm_start": "frozen warm start"}.get(name, name.replace("_", " "))


def _rows(report: SuiteReport) -> Iterator[tuple[float, str, str]]:
    """Height, group and opponent; a gap before each group leaves room for its name."""
    height = 0.0
    for group, figures in report.policies[JUDGED].groups.items():
        height += _GROUP_GAP
        for opponent in figures.by_opponent:
            yield height, group, opponent
            height += 1


def _point(axis: matplotlib.axes.Axes, estimate: Estimate, height: float, colour: str, marker: str) -> None:
    axis.plot((estimate.low, estimate.high), (height, height), color=colour, linewidth=1.6, alpha=0.8)
    axis.plot(estimate.mean, height, marker=marker, color=colour, markersize=5.5, linestyle="none")


def _arms(estimate: Estimate) -> tuple[list[float], list[float]]:
    # A percentile interval may, by rounding, end a hair on the wrong side of the mean.
    return [max(0.0, estimate.mean - estimate.low)], [max(0.0, estimate.high - estimate.mean)]


def _legend_and_title(figure: Figure, report: SuiteReport, what: str) -> None:
    handles = [
        Line2D([], [], color=_STYLES[policy][0], marker=_STYLES[policy][1], label=policy_label(report, policy))
        for policy in report.policies
    ]
    figure.suptitle(f"{report.adapter} as {report.role} in {report.scenario}: {what}", fontsize=11)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, frameon=False)
