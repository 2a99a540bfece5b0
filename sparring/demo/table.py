"""The one table that the demo ends with, from the worker's verdicts and the customers' own counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table

from negotiation.roles import Role
from pipelines.gate import Interval
from pipelines.round_state import RoleVerdict, RoundResult
from sparring.demo.customers import Tally

_MEASURES = (("success", "success %", 100.0, 1), ("own_reward", "reward", 1.0, 2))


@dataclass(frozen=True)
class Ending:
    """What the demo found out. ``during`` counts the customers who kept talking while versions changed."""

    result: RoundResult
    serving: str
    before: Tally
    during: Tally
    swap_seconds: float | None
    wall_seconds: float
    peak_bytes: int
    urls: Mapping[str, str]
    confidence: float = 0.95


def summary_of(ending: Ending) -> Group:
    """The measures of both roles, and under them what was decided, what serves and where to look."""
    agent = ending.result.verdicts[Role.AGENT]
    measures = Table(
        title=f"Round {ending.result.version}: before and after, counterparts that training never met",
        caption=f"{agent.conversations} conversations on {agent.scenarios} unseen scenarios each, "
        f"{100 * ending.confidence:g} % intervals",
        title_justify="left",
        caption_justify="left",
        # Narrow, so that a terminal of 80 characters takes it.
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    for heading in ("", "before", "after", "difference"):
        measures.add_column(heading, no_wrap=True)
    for role, verdict in ending.result.verdicts.items():
        for metric, label, factor, digits in _MEASURES:
            shown = (_shown(where[metric], factor, digits) for where in _columns(verdict))
            measures.add_row(f"{role} {label}", *shown)
    facts = Table.grid(padding=(0, 2))
    for role, verdict in ending.result.verdicts.items():
        facts.add_row(str(role), _why(verdict))
    facts.add_row("now serving", ending.serving)
    facts.add_row("during the swap", _during(ending))
    facts.add_row("this run", _cost(ending))
    for name, url in ending.urls.items():
        facts.add_row(name, url)
    return Group(measures, Padding(facts, (1, 0)))


def _columns(verdict: RoleVerdict) -> tuple[Mapping[str, Interval], ...]:
    return verdict.before, verdict.after, verdict.difference


def _shown(interval: Interval, factor: float, digits: int) -> str:
    mean, low, high = (f"{factor * value:.{digits}f}" for value in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low},{high}]"


def _why(verdict: RoleVerdict) -> str:
    decision = f"promoted over {verdict.champion}" if verdict.promoted else f"not promoted, {verdict.champion} stays"
    return f"{verdict.candidate} {decision}. {' '.join(verdict.reasons)}"


def _during(ending: Ending) -> str:
    tally = ending.during
    calls = ", ".join(f"{count} with {name}" for name, count in tally.by_adapter().items()) or "none"
    seconds = ending.swap_seconds
    swap = "no swap was due" if seconds is None else f"swapped within {seconds:.1f} s of the verdict"
    return f"{tally.requests:,} requests served, {tally.failures} failed; calls: {calls}; {swap}"


def _cost(ending: Ending) -> str:
    calls, rate = len(ending.before.calls), ending.before.success_rate or 0.0
    return (
        f"{calls} customers served before the round ({100 * rate:.0f} % success), "
        f"{ending.wall_seconds / 60:.1f} minutes, {ending.peak_bytes / 1e9:.2f} GB at most in all processes"
    )


def print_ending(console: Console, ending: Ending) -> None:
    console.print()
    console.print(summary_of(ending))
