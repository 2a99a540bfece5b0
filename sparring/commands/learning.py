"""``sparring train``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.commands.options import ConfigOption, JsonOption, print_json, say, settings_from
from sparring.errors import RefusedError
from training.methods import Method

if TYPE_CHECKING:
    from pipelines.round_state import RoundResult


def train(
    method: Annotated[
        Method | None, typer.Option(help="Who learns, and against whom (default: as configured, bilateral).")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Update steps (default: as configured).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of scenarios, samples and adapters.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """One round now: train, evaluate, gate, register, and promote what earned it.

    Methods: bilateral (both roles learn, isolated), unilateral-frozen and unilateral-scripted (the agent alone),
    self-play (one adapter in both chairs), and two ablations of bilateral: bilateral-shared-advantage and
    bilateral-shared-adapter.

    Goes on with a round that was interrupted. Exit code 1 if no candidate was promoted.
    """
    from rich.console import Console

    from sparring.compose import train_once
    from sparring.progress import RoundBars

    settings = settings_from(config, {"training": {"method": method, "steps": steps, "seed": seed}})
    with RoundBars(Console(stderr=True)) as bars:
        result = train_once(settings, lambda at: bars.show(at.phase, at.step, at.of, at.metrics))
    if as_json:
        print_json(asdict(result))
    else:
        _print_result(result)
    if not result.promoted:
        raise RefusedError("no candidate was promoted; the champions stay")


def _print_result(result: RoundResult) -> None:
    for verdict in result.verdicts.values():
        typer.echo(f"{verdict.candidate}: {'promoted' if verdict.promoted else 'not promoted'}")
        for reason in verdict.reasons:
            typer.echo(f"  {reason}")
    for line in result.price.lines() if result.price is not None else ():
        say(line)
    say(f"Report: {result.report}")
