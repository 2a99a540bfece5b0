"""The one table that the demo ends with, from the worker's verdicts and the customers' own counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from negotiation.roles import Role
from pipelines.gate import Interval
from pipelines.round_state import RoleVerdict, RoundResult
from sparring.demo.customers import Tally


@dataclass(frozen=True)
class Ending:
    """What the demo found out."""

    result: RoundResult
    serving: str
    before: Tally
    during: Tally
    swap_seconds: float | None
    wall_seconds: float
    peak_bytes: int
    urls: Mapping[str, str]


def summary_of(ending: Ending) -> Group:
    """The table and the lines under it."""
    result = ending.result
    agent = result.verdicts[Role.AGENT]
    table = Table(
        title=f"Round {result.version}: {agent.conversations} conversations a role and version on "
        f"{agent.scenarios} unseen scenarios, counterparts that training never met (95 % intervals)",
        title_justify="left",
    )
    table.add_column("role")
    table.add_column("measure")
    table.add_column("before")
    table.add_column("after")
    table.add_column("difference")
    table.add_column("verdict")
    for role in Role:
        _rows(table, role, result.verdicts[role])
    lines = [
        *(_why(result.verdicts[role]) for role in Role),
        Text(f"Now serving: {ending.serving}"),
        _during(ending),
        Text(f"Wall time {ending.wall_seconds / 60:.1f} min, peak memory {ending.peak_bytes / 1e9:.2f} GB in all"),
        *(Text(f"{name}: {url}") for name, url in ending.urls.items()),
    ]
    return Group(table, *lines)


def _rows(table: Table, role: Role, verdict: RoleVerdict) -> None:
    verdict_text = "promoted" if verdict.promoted else "kept the champion"
    names = f"{verdict.champion} -> {verdict.candidate}"
    for number, (metric, label, percent) in enumerate(
        (("success", "success", True), ("own_reward", "own reward", False))
    ):
        table.add_row(
            str(role) if number == 0 else "",
            label,
            *(_shown(where[metric], percent) for where in (verdict.before, verdict.after, verdict.difference)),
            verdict_text if number == 0 else names,
        )


def _shown(interval: Interval, percent: bool) -> str:
    if percent:
        return f"{interval.mean:.1%} [{interval.low:.1%}, {interval.high:.1%}]".replace("%", " %")
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _why(verdict: RoleVerdict) -> Text:
    decision = "promoted" if verdict.promoted else "not promoted"
    return Text(f"{verdict.role} {decision}: {' '.join(verdict.reasons)}")


def _during(ending: Ending) -> Text:
    tally = ending.during
    versions = ", ".join(f"{count} calls with {name}" for name, count in tally.by_adapter().items()) or "none"
    seconds = ending.swap_seconds
    swap = "no swap was due" if seconds is None else f"swapped {seconds:.1f} s after the round"
    return Text(
        f"Customers kept talking meanwhile: {tally.requests:,} requests, {tally.failures} failures "
        f"({versions}; {swap})"
    )


def print_ending(console: Console, ending: Ending) -> None:
    console.print()
    console.print(summary_of(ending))
