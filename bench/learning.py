"""Does co-training make the agent better against counterparts it never met? Several seeds, with intervals.

Each seed is a whole run: other scenarios, other adapters, other sampling. Baseline, in the same run: the warm start
(the base model without an adapter), on the same held-out scenarios. Left out on purpose: the loop around it (event
log, registry, swap), which the demo shows.

Run: ``python bench/learning.py --seeds 1 --seeds 2 --seeds 3 --output learning.json`` (about five minutes a seed on
two cores).
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from negotiation.catalogue import scenario_named
from negotiation.generation import BASE, Engine
from negotiation.roles import Role
from pipelines.calibration import held_out_seeds, training_seed
from pipelines.gate import GateDecision, decide
from sparring.compose import base_reference, open_engine
from sparring.models import resolve_base_model
from sparring.progress import columns
from sparring.settings import Settings, load_settings
from training.cotrain import cotrain
from training.counterparts import negotiators
from training.evaluation import Episode, evaluate
from training.records import RoundProgress

app = typer.Typer(add_completion=False)


@app.command()
def learning(
    seeds: Annotated[list[int] | None, typer.Option(help="Seeds, one run each (default: 1, 2 and 3).")] = None,
    scenarios: Annotated[int, typer.Option(min=20, help="Held-out scenarios per counterpart.")] = 128,
    output: Annotated[Path | None, typer.Option(help="Where to write the figures as JSON.")] = None,
) -> None:
    """Co-train from the warm start with several seeds; compare each agent with the warm start, pair by pair."""
    settings, console = load_settings(None), Console()
    runs: dict[int, dict[Role, GateDecision]] = {}
    with Progress(*columns(), console=console) as progress:
        for seed in seeds or [1, 2, 3]:
            task = progress.add_task(f"seed {seed}", total=settings.training.steps, note="")

            def show(at: RoundProgress, task: Any = task) -> None:
                note = f"agent success {at.metrics[Role.AGENT]['success']:.0%}"
                progress.update(task, completed=at.step, note=note)

            runs[seed] = _run(settings, seed, scenarios, show)
    console.print(_table(runs))
    if output is not None:
        figures = {
            seed: {str(role): asdict(decision) for role, decision in run.items()} for seed, run in runs.items()
        }
        output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _run(settings: Settings, seed: int, scenarios: int, show: Any) -> dict[Role, GateDecision]:
    model = resolve_base_model(settings.base_model)
    scenario = scenario_named(settings.pipelines.scenario)
    training = settings.training.model_copy(update={"seed": seed})
    engine = open_engine(settings, model, training=True)
    decisions: dict[Role, GateDecision] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            trained = cotrain(
                training,
                engine,
                scenario,
                lambda index: scenario.generate(training_seed(seed, index)),
                dict.fromkeys(Role),
                seed,
                Path(folder),
                base_reference(model),
                show,
            )
            for role in Role:
                name = trained.adapters[role].name
                engine.load_adapter(name, trained.adapters[role])
                gate = settings.pipelines.gate_of(role)
                decisions[role] = decide(
                    _episodes(engine, settings, name, role, seed, scenarios),
                    _episodes(engine, settings, BASE, role, seed, scenarios),
                    gate,
                )
    finally:
        engine.close()
    return decisions


def _episodes(
    engine: Engine, settings: Settings, adapter: str, role: Role, seed: int, scenarios: int
) -> tuple[Episode, ...]:
    name = settings.pipelines.scenario
    opponents = negotiators(name, role.other, "held_out")
    return evaluate(engine, scenario_named(name), adapter, role, opponents, held_out_seeds(seed, scenarios)).episodes


def _table(runs: dict[int, dict[Role, GateDecision]]) -> Table:
    table = Table("seed", "role", "metric", "warm start", "trained", "difference", "promoted")
    for seed, run in runs.items():
        for role, decision in run.items():
            for metric in ("success", "own_reward"):
                table.add_row(
                    str(seed),
                    str(role),
                    metric.replace("_", " "),
                    str(decision.champion[metric]),
                    str(decision.candidate[metric]),
                    str(decision.differences[metric]),
                    "yes" if decision.promote else "no",
                )
    return table


if __name__ == "__main__":
    app()
