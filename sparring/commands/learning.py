"""``sparring train`` and ``sparring evaluate``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from negotiation.roles import Role
from sparring.commands.options import ConfigOption, JsonOption, print_json, say, settings_from
from sparring.errors import RefusedError

if TYPE_CHECKING:
    from pipelines.round_state import RoundResult


def train(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """One round now: co-train both roles, evaluate, gate, register, and promote what earned it.

    Goes on with a round that was interrupted. Exit code 1 if neither role was promoted.
    """
    from rich.console import Console

    from sparring.compose import train_once
    from sparring.progress import RoundBars

    settings = settings_from(config)
    with RoundBars(Console(stderr=True)) as bars:
        result = train_once(settings, lambda at: bars.show(at.phase, at.step, at.of, at.metrics))
    if as_json:
        print_json(asdict(result))
    else:
        _print_result(result)
    if not result.promoted:
        raise RefusedError("neither candidate was promoted; the champions stay")


def _print_result(result: RoundResult) -> None:
    for role in Role:
        verdict = result.verdicts[role]
        typer.echo(f"{verdict.candidate}: {'promoted' if verdict.promoted else 'not promoted'}")
        for reason in verdict.reasons:
            typer.echo(f"  {reason}")
    say(f"Report: {result.report}")


def evaluate(
    role: Annotated[Role, typer.Option(help="Whose adapter to judge.")] = Role.AGENT,
    version: Annotated[int | None, typer.Option(min=1, help="Version number (default: the champion).")] = None,
    scenarios: Annotated[
        int | None, typer.Option(min=2, max=9999, help="Seeded scenarios per counterpart (default: as configured).")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play a version against counterparts that training never met, and print how it did, with 95 % intervals."""
    from sparring.judge import evaluate_version

    settings = settings_from(config, {"pipelines": {"evaluation_scenarios": scenarios}})
    report = evaluate_version(settings, role, version)
    if as_json:
        print_json(report)
        return
    typer.echo(
        f"{report.name} in {report.scenario}: {report.conversations} conversations on {report.scenarios} scenarios"
    )
    for label, figures in (("all", report.overall), *report.by_opponent.items()):
        shown = ", ".join(f"{name.replace('_', ' ')} {interval}" for name, interval in figures.items())
        typer.echo(f"  {label:<24} {shown}")
