"""What a bilateral iteration costs beside a unilateral one, beside training both roles separately, and unbatched.

All in one run, on the same model, scenarios and settings, several times in turn (this and most machines are noisy):

* bilateral: both roles learn from joint dialogues; each dialogue gives a view to both;
* unilateral: the agent learns against the frozen counterpart;
* separately: the agent against a frozen counterpart, then the counterpart against a frozen agent: twice the
  dialogues and both updates, reckoned as twice the unilateral run;
* batched rollouts against one dialogue at a time.

Ratios are medians over the repetitions, with the extremes.

Run: ``python bench/training_cost.py --output training_cost.json`` (a few minutes on two cores; ``--quick``: one).
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

from negotiation.catalogue import scenario_named
from negotiation.generation import BASE, Engine, Sampling
from negotiation.roles import Role
from pipelines.calibration import training_seed
from sparring.compose import base_reference, open_engine
from sparring.models import resolve_base_model
from sparring.progress import columns
from sparring.settings import Settings, load_settings
from training.config import TrainingSettings
from training.cotrain import cotrain
from training.joint_rollout import ModelPlayer, Table, play
from training.methods import Method
from training.records import CotrainResult

app = typer.Typer(add_completion=False)
GOALS = {
    "bilateral / unilateral, seconds a dialogue": 1.3,
    "bilateral / both roles separately, seconds": 0.7,
    "one by one / batched, seconds a dialogue": 10.0,
}


@dataclass(frozen=True)
class Timing:
    """One run of one step or more: seconds, dialogues played, tokens."""

    seconds: float
    rollout_seconds: float
    dialogues: int
    tokens_sampled: int
    tokens_trained: int


@app.command()
def training_cost(
    repetitions: Annotated[int, typer.Option(min=1, help="Times that everything is measured, in turn.")] = 3,
    scenario: Annotated[str, typer.Option(help="Which scenario.")] = "telesales",
    dialogues: Annotated[int, typer.Option(min=8, help="Dialogues in the rollout comparison.")] = 128,
    threads: Annotated[int, typer.Option(min=1, help="Torch threads.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="One repetition, few dialogues.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where to write the figures as JSON.")] = None,
) -> None:
    """Measure, print the ratios with their goals, and write every figure down."""
    console, loaded = Console(), load_settings(None)
    shape = {"steps": 1, "scenarios_per_step": 2, "group_size": 4} if quick else {"steps": 2, "scenarios_per_step": 6}
    fields = {**loaded.training.model_dump(), **shape, "threads": threads, "validation_every": 0, "joint_share": 1.0}
    settings = loaded.model_copy(update={"training": TrainingSettings.model_validate(fields)})
    rounds, count = (1, 12) if quick else (repetitions, dialogues)
    measured: list[dict[str, Any]] = []
    with Progress(*columns(), console=console) as progress:
        task = progress.add_task("measuring", total=rounds * 4, note="")
        for number in range(rounds):
            row: dict[str, Any] = {}
            for name, measure in _measures(settings, scenario, number, count).items():
                row[name] = measure()
                progress.update(task, advance=1, note=name)
            measured.append(row)
    ratios = {name: [_ratio(name, row) for row in measured] for name in GOALS}
    console.print(_table(ratios))
    console.print(_figures(measured[-1]))
    if output is not None:
        plain = [{k: vars(v) if isinstance(v, Timing) else v for k, v in row.items()} for row in measured]
        output.write_text(json.dumps({"ratios": ratios, "measured": plain}, indent=1) + "\n", encoding="utf-8")


def _measures(settings: Settings, scenario: str, number: int, dialogues: int) -> dict[str, Callable[[], Any]]:
    return {
        "bilateral": lambda: _train(settings, scenario, Method.BILATERAL, number),
        "unilateral": lambda: _train(settings, scenario, Method.UNILATERAL_FROZEN, number),
        "batched": lambda: _rollout(settings, scenario, number, dialogues, dialogues),
        # An eighth of the dialogues is enough to tell what one costs.
        "one by one": lambda: _rollout(settings, scenario, number, max(4, dialogues // 8), 1),
    }


def _train(settings: Settings, scenario: str, method: Method, seed: int) -> Timing:
    model = resolve_base_model(settings.base_model)
    training = settings.training.model_copy(update={"method": method, "seed": seed})
    engine = open_engine(settings, model, training=True)
    chosen = scenario_named(scenario)
    try:
        with tempfile.TemporaryDirectory() as folder:
            result: CotrainResult = cotrain(
                training,
                engine,
                chosen,
                lambda index: chosen.generate(training_seed(seed, index)),
                dict.fromkeys(Role),
                1,
                Path(folder),
                base_reference(model),
                lambda _: None,
            )
    finally:
        engine.close()
    seconds = result.price.seconds
    return Timing(
        seconds=result.seconds,
        rollout_seconds=seconds["rollouts"],
        dialogues=result.price.dialogues,
        tokens_sampled=sum(result.tokens_sampled.values()),
        tokens_trained=sum(result.tokens_trained.values()),
    )


def _rollout(settings: Settings, scenario: str, seed: int, dialogues: int, together: int) -> float:
    """Seconds a dialogue, ``together`` at a time, on the same scenarios."""
    engine: Engine = open_engine(settings, resolve_base_model(settings.base_model), training=True)
    chosen = scenario_named(scenario)
    players: Any = {role: ModelPlayer(BASE) for role in Role}
    tables = [Table(chosen.generate(training_seed(seed, n)), players, n) for n in range(dialogues)]
    try:
        play(engine, chosen, tables[:1], Sampling(max_tokens=8))
        began = time.perf_counter()
        for first in range(0, dialogues, together):
            sampling = Sampling(max_tokens=settings.training.max_message_tokens)
            play(engine, chosen, tables[first : first + together], sampling)
        return (time.perf_counter() - began) / dialogues
    finally:
        engine.close()


def _ratio(name: str, row: dict[str, Any]) -> float:
    both, one = row["bilateral"], row["unilateral"]
    if name.startswith("bilateral / unilateral"):
        return float(both.seconds / both.dialogues / (one.seconds / one.dialogues))
    if name.startswith("bilateral / both"):
        return float(both.seconds / (2 * one.seconds))
    return float(row["one by one"] / row["batched"])


def _table(ratios: dict[str, list[float]]) -> RichTable:
    table = RichTable("ratio", "median", "lowest", "highest", "goal", "met")
    for name, values in ratios.items():
        median, goal = statistics.median(values), GOALS[name]
        at_least = name.startswith("one by one")
        met = median >= goal if at_least else median <= goal
        sign = "at least" if at_least else "at most"
        figures = [f"{value:.2f}" for value in (median, min(values), max(values))]
        table.add_row(name, *figures, f"{sign} {goal}", "yes" if met else "no")
    return table


def _figures(row: dict[str, Any]) -> RichTable:
    table = RichTable("last repetition", "seconds", "of it rollouts", "dialogues", "tokens sampled", "tokens trained")
    for name in ("bilateral", "unilateral"):
        t: Timing = row[name]
        counts = [f"{n:,}" for n in (t.dialogues, t.tokens_sampled, t.tokens_trained)]
        table.add_row(name, f"{t.seconds:.1f}", f"{t.rollout_seconds:.1f}", *counts)
    return table


if __name__ == "__main__":
    app()
