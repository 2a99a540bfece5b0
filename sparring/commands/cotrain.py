"""``sparring cotrain``: training alone, into a folder. No registry, no gate, nothing served."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from sparring.commands.options import ConfigOption, JsonOption, print_json, say, settings_from
from sparring.errors import MisuseError, RefusedError
from training.methods import Method

if TYPE_CHECKING:
    from collections.abc import Callable

    from negotiation.scenario import Context, Scenario
    from sparring.settings import Settings
    from training.records import CotrainResult, RoundProgress


def cotrain(
    output: Annotated[Path, typer.Option(help="Folder for adapters and checkpoints.")],
    method: Annotated[
        Method | None, typer.Option(help="Who learns, and against whom (default: as configured, bilateral).")
    ] = None,
    scenario: Annotated[str | None, typer.Option(help="Which scenario (default: as configured).")] = None,
    version: Annotated[int, typer.Option(min=1, help="Version number of the adapters to be made.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Update steps (default: as configured).")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of scenarios, samples and adapters.")] = None,
    start_agent: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="The agent's adapter to go on from.")
    ] = None,
    start_counterpart: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="The counterpart's adapter to go on from.")
    ] = None,
    partner: Annotated[
        list[Path] | None,
        typer.Option(exists=True, file_okay=False, help="A frozen counterpart's adapter to meet too (repeat)."),
    ] = None,
    contexts: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Deal-or-NoDeal scenarios, in contexts.txt format."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train by one method, into a folder: to compare methods, or on several processes with accelerate launch.

    A run that was killed goes on where it was when the same command is given again, and ends with the same adapters.
    """
    from training.checkpoint import CheckpointMismatch
    from training.learner import TrainingHalted

    settings = settings_from(
        config,
        {"training": {"method": method, "steps": steps, "seed": seed}, "pipelines": {"scenario": scenario}},
    )
    chosen = scenario_named(settings.pipelines.scenario)
    start = {Role.AGENT: start_agent, Role.COUNTERPART: start_counterpart}
    drawn = _contexts(chosen, contexts, settings.training.seed)
    try:
        result = _train(settings, chosen, drawn, start, version, output, partner or [])
    except TrainingHalted as error:
        raise RefusedError(str(error)) from error
    except (CheckpointMismatch, FileExistsError, ValueError) as error:
        raise MisuseError(str(error)) from error
    if result is None:
        return
    if as_json:
        print_json({"adapters": {role: str(path) for role, path in result.adapters.items()}, **asdict(result.price)})
        return
    for path in result.adapters.values():
        typer.echo(str(path))
    for line in result.price.lines():
        say(line)


def _contexts(scenario: Scenario, file: Path | None, seed: int) -> Callable[[int], Context]:
    from pipelines.calibration import training_seed

    if file is None:
        return lambda index: scenario.generate(training_seed(seed, index))
    from negotiation.corpus import read_contexts
    from negotiation.deal_or_no_deal import DealOrNoDeal

    if scenario.name != DealOrNoDeal.name:
        raise MisuseError(f"--contexts holds {DealOrNoDeal.name} scenarios, not {scenario.name}: add --scenario")
    with file.open(encoding="utf-8") as lines:
        found = list(read_contexts(lines, str(file)))
    if not found:
        raise MisuseError(f"{file} holds no scenario: give two lines for each, one per side")
    return lambda index: found[index % len(found)].model_copy(update={"seed": index})


def _train(
    settings: Settings,
    scenario: Scenario,
    drawn: Callable[[int], Context],
    start: dict[Role, Path | None],
    version: int,
    output: Path,
    frozen: list[Path],
) -> CotrainResult | None:
    """The result, or None in a process that is not the first of several."""
    from accelerate import PartialState
    from rich.console import Console

    from sparring.compose import base_reference, open_engine
    from sparring.models import resolve_base_model
    from sparring.progress import RoundBars
    from training import cotrain as core

    model = resolve_base_model(settings.base_model)
    engine = open_engine(settings, model, training=True)
    try:
        with RoundBars(Console(stderr=True)) as bars:

            def show(at: RoundProgress) -> None:
                if PartialState().is_main_process:
                    bars.show("training", at.step, at.of, {str(role): row for role, row in at.metrics.items()})

            result = core.cotrain(
                settings.training,
                engine,
                scenario,
                drawn,
                start,
                version,
                output,
                base_reference(model),
                show,
                frozen,
            )
    finally:
        engine.close()
    return result if PartialState().is_main_process else None
