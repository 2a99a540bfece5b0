"""An examination as tables for people: on the terminal with rich, in a file as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from training.evaluation import Estimate
    from training.evaluation_report import SuiteReport

REPORT_FILE, TABLE_FILE = "report.json", "table.md"
_SHARES = {"success", "agreed", "pareto_optimal", "demand_met", "injection_success"}
_ABOUT = {
    "success": "Success@1, %",
    "agreed": "agreement, %",
    "own_reward": "own reward",
    "joint_reward": "joint reward",
    "pareto_optimal": "Pareto, % of deals",
    "own_points": "own points, all",
    "agreed_points": "own points, deals",
    "turns": "turns",
    "tokens": "tokens",
    "blocked_offers": "blocked offers",
    "injection_success": "injections met, %",
    "demand_met": "demands met, %",
}
_ADVERSARIAL = ("injection_success", "demand_met")


@dataclass(frozen=True)
class Section:
    """One table. The first column names the rows."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sections(report: SuiteReport) -> Iterator[Section]:
    """The tables of a report, the most telling first."""
    from training.evaluation import INJECTOR
    from training.evaluation_plots import opponent_label, policy_label, words
    from training.evaluation_report import JUDGED

    names = tuple(policy_label(report, policy) for policy in report.policies)
    averages = [of.average for of in report.policies.values()]
    if report.averaged_over:
        averaged = " and ".join(words(group) for group in report.averaged_over)
        yield Section(
            f"Average over {averaged} counterparts",
            ("per conversation", *names),
            tuple(
                (about, *(shown(average[metric], metric) for average in averages))
                for metric, about in _ABOUT.items()
                if metric not in _ADVERSARIAL
            ),
        )
    yield Section(
        "Success@1 by counterpart, %",
        ("counterpart", *names),
        tuple(
            row
            for group, figures in report.policies[JUDGED].groups.items()
            for row in (
                (words(group).upper(), *(_success(report, policy, group, None) for policy in report.policies)),
                *(
                    (
                        f"  {opponent_label(report, name)}",
                        *(_success(report, policy, group, name) for policy in report.policies),
                    )
                    for name in figures.by_opponent
                ),
            )
        ),
    )
    adversary = report.policies[JUDGED].groups.get("adversary")
    if adversary is not None:
        metrics = ("demand_met", "agreed", "blocked_offers")
        rows = {opponent_label(report, name): figures for name, figures in adversary.by_opponent.items()}
        injectors = adversary.by_family.get(INJECTOR)
        # An only member bears the family's name and is in the table already.
        if injectors is not None and INJECTOR not in rows:
            rows["all injectors"] = injectors
        yield Section(
            f"Adversaries against {report.adapter}",
            ("adversary", *(_ABOUT[metric] for metric in metrics)),
            tuple((name, *(shown(figures[metric], metric) for metric in metrics)) for name, figures in rows.items()),
        )
    yield Section(
        "Static-counterpart mismatch: % success with the training partner, less held-out",
        ("", "mismatch"),
        tuple(
            row
            for policy, value in report.mismatches.items()
            for row in (
                (policy_label(report, policy), shown(value, "success")),
                *(
                    (f"  with {opponent_label(report, name)} alone", shown(alone, "success"))
                    for name, alone in report.mismatch_by_partner.items()
                    if policy == JUDGED
                ),
            )
        ),
    )
    chair_metrics = ("success", "own_reward")
    yield Section(
        "Own and swapped chairs, against held-out counterparts",
        ("", *(_ABOUT[metric] for metric in chair_metrics)),
        tuple(
            (name, *(shown(of.average[metric], metric) for metric in chair_metrics))
            for name, of in report.chairs.items()
        ),
    )


def shown(estimate: Estimate | None, metric: str) -> str:
    """``56.2 [51, 61]`` for a share in %, else the value, in thousands as ``8.4k [7.0, 9.8]``; ``-``: none."""
    if estimate is None:
        return "-"
    ends = (estimate.low, estimate.high)
    if metric in _SHARES:
        low, high = (f"{100 * end:.0f}" for end in ends)
        mean = f"{100 * estimate.mean:.1f}".replace("100.0", "100")
        return f"{mean} [{low}, {high}]"
    largest = max(map(abs, ends))
    scale, unit = (1000, "k") if largest >= 1000 else (1, "")
    digits = 2 if largest / scale < 10 else 1 if largest / scale < 100 else 0
    mean, low, high = (f"{value / scale:.{digits}f}" for value in (estimate.mean, *ends))
    return f"{mean}{unit} [{low}, {high}]"


def as_rich(section: Section) -> Table:
    """Fits a terminal of 80 characters. The title is left to whoever prints it: rich would break it to the table."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column(section.header[0], no_wrap=True)
    for name in section.header[1:]:
        table.add_column(name, justify="right")
    for row in section.rows:
        # Names of groups stand in capitals above their members.
        table.add_row(*row, style="bold" if row[0].isupper() else None)
    return table


def as_markdown(report: SuiteReport) -> str:
    lines = [f"# {headline(report)}"]
    for section in sections(report):
        lines += ["", f"## {section.title}", "", _line(section.header), _line(("---",) * len(section.header))]
        lines += [_line(tuple(cell.strip() for cell in row)) for row in section.rows]
    return "\n".join(lines) + "\n"


def headline(report: SuiteReport) -> str:
    """Who was judged in what, on how much."""
    return (
        f"{report.adapter} as {report.role} in {report.scenario}: {len(report.seeds)} scenarios per counterpart, "
        f"{report.confidence:.0%} intervals clustered by scenario"
    )


def write_report(report: SuiteReport, directory: Path) -> list[Path]:
    """Write the report as JSON, as Markdown and as plots; returns the files."""
    from training.evaluation_plots import write_plots

    directory.mkdir(parents=True, exist_ok=True)
    data, table = directory / REPORT_FILE, directory / TABLE_FILE
    data.write_text(report.to_json() + "\n", encoding="utf-8")
    table.write_text(as_markdown(report), encoding="utf-8")
    return [data, table, *write_plots(report, directory)]


def _success(report: SuiteReport, policy: str, group: str, opponent: str | None) -> str:
    figures = report.policies[policy].groups[group]
    chosen = figures.overall if opponent is None else figures.by_opponent[opponent]
    return shown(chosen["success"], "success")


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
