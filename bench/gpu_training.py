"""Joint rollouts and bilateral steps on one GPU: tokens a second of each phase, and the share of time it works.

Runs on a bare machine with torch, transformers, peft and trl: the in-process engine samples, both learners train,
all on the same device. The share of time that the GPU works is read from NVIDIA's management library every 100 ms,
through torch. A larger model is named by path or hub id; the bundled one shows that it runs. Without a GPU:
``--device cpu --quick``, which measures nothing worth quoting.

Run: ``python bench/gpu_training.py --base-model HuggingFaceTB/SmolLM2-135M-Instruct --output gpu.json`` (under eight
minutes on an H200).
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from pipelines.calibration import training_seed
from sparring.compose import base_reference, open_engine
from sparring.models import BUNDLED, resolve_base_model
from sparring.progress import columns
from sparring.settings import load_settings
from training.config import TrainingSettings
from training.cotrain import cotrain
from training.records import CotrainResult, RoundProgress

app = typer.Typer(add_completion=False)
WATCH_EVERY = 0.1
"""Seconds between two readings of how busy the GPU is."""


@app.command()
def gpu_training(
    base_model: Annotated[str, typer.Option(help="Path or hub id of the base model, or `bundled`.")] = BUNDLED,
    scenario: Annotated[str, typer.Option(help="Which scenario.")] = "telesales",
    steps: Annotated[int, typer.Option(min=2, help="Bilateral steps; the first is not counted.")] = 6,
    scenarios: Annotated[int, typer.Option(min=1, help="Scenarios a step.")] = 32,
    group_size: Annotated[int, typer.Option(min=2, help="Dialogues a scenario.")] = 8,
    device: Annotated[str, typer.Option(help="cuda, cpu or auto.")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Two tiny steps: shows that it runs.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where to write the figures as JSON.")] = None,
) -> None:
    """Run bilateral steps and print what each phase managed."""
    console, loaded = Console(), load_settings(None)
    shape = {"steps": steps, "scenarios_per_step": scenarios, "group_size": group_size}
    fields = {**loaded.training.model_dump(), **shape, "device": device, "validation_every": 0, "joint_share": 1.0}
    if quick:
        fields |= {"steps": 2, "scenarios_per_step": 1, "group_size": 4}
    training = TrainingSettings.model_validate({**fields, "micro_batch": 64})
    settings = loaded.model_copy(update={"training": training})
    with Progress(*columns(), console=console) as progress, _watched() as busy:
        task = progress.add_task("bilateral steps", total=training.steps, note="")

        def show(at: RoundProgress) -> None:
            progress.update(task, completed=at.step, note=f"agent success {at.metrics[Role.AGENT]['success']:.0%}")

        result = _train(settings, base_model, scenario, show)
    figures = _figures(result, busy)
    console.print(_table(figures))
    if output is not None:
        written = {"device": _device(), "settings": training.model_dump(mode="json"), "base_model": base_model}
        written |= {"figures": figures, "price": asdict(result.price)}
        output.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def _train(settings: Any, base_model: str, scenario: str, show: Any) -> CotrainResult:
    model, chosen = resolve_base_model(base_model), scenario_named(scenario)
    engine = open_engine(settings, model, training=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return cotrain(
                settings.training,
                engine,
                chosen,
                lambda index: chosen.generate(training_seed(1, index)),
                dict.fromkeys(Role),
                1,
                Path(folder),
                base_reference(model),
                show,
            )
    finally:
        engine.close()


@contextmanager
def _watched() -> Iterator[list[float]]:
    """Readings of GPU utilisation, in per cent; empty without a GPU."""
    readings: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        while torch.cuda.is_available() and not stop.wait(WATCH_EVERY):
            try:
                readings.append(float(torch.cuda.utilization()))
            except ModuleNotFoundError as error:
                typer.echo(f"the GPU's load is not read: {error}; pip install nvidia-ml-py", err=True)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield readings
    finally:
        stop.set()
        thread.join()


def _figures(result: CotrainResult, busy: list[float]) -> dict[str, float]:
    """Tokens a second, the run's first step left out of the rollouts' figure: it warms the caches."""
    later = result.steps[1:]
    rollouts = sum(step.rollout_seconds for step in later)
    updates = sum(seconds for phase, seconds in result.price.seconds.items() if phase.startswith("update"))
    figures = {
        "tokens sampled a second": sum(sum(step.tokens_sampled.values()) for step in later) / rollouts,
        "dialogues a second": sum(step.dialogues for step in later) / rollouts,
        "own tokens trained a second": sum(result.tokens_trained.values()) / updates,
        "seconds a step": result.seconds / len(result.steps),
        "share of time in rollouts": result.price.seconds["rollouts"] / result.seconds,
        "peak GPU memory, GB": result.price.peak_gpu_memory_bytes / 1e9,
    }
    if busy:
        figures["GPU busy, mean %"] = statistics.fmean(busy)
    return figures


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _table(figures: dict[str, float]) -> Table:
    table = Table(_device(), "")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}")
    return table


if __name__ == "__main__":
    app()
