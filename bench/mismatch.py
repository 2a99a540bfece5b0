"""Which trainer makes the agent that does best against counterparts it never met? Six methods, two scenarios, seeds.

Every method starts from the same warm start (the bundled base model) and spends the same number of agent dialogues
and agent updates; the tokens that each sampled are in the table. A job is one scenario, method and seed: it trains,
then plays the frozen agent on scenarios that no training drew, against the held-out families, the fixed enterprise
policy, the adversaries, the partner that it was trained against and the frozen warm-started counterpart. Jobs that
are done are kept in ``--work`` and not run again; one that was interrupted goes on from its last step.

Differences are paired: the same seed's runs, on the same scenarios, against the same counterparts. Intervals resample
training seeds and, within each, scenarios (two-level bootstrap).

Run: ``python bench/mismatch.py --work mismatch --output docs/experiments`` (two processes of one thread each; under
two hours on two cores), or with ``--quick`` (minutes; one seed, two methods: shows that it works and no more).
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from negotiation.catalogue import NAMES, scenario_named
from negotiation.generation import BASE
from negotiation.roles import Role
from sparring.compose import base_reference, open_engine
from sparring.models import resolve_base_model
from sparring.progress import columns
from sparring.settings import load_settings
from training.config import TrainingSettings
from training.cotrain import cotrain
from training.counterparts import negotiators
from training.evaluation import EvaluationResult, evaluate
from training.evaluation_suite import APART
from training.joint_rollout import ModelPlayer
from training.methods import Method

app = typer.Typer(add_completion=False)
HELD_OUT_SEED = 2_000_000_000_000
"""Scenarios of the evaluation; training draws far under it."""
SPAN = 1_000_000
WARM_START = "warm-start"
KEPT = (
    "seed",
    "opponent",
    "success",
    "agreed",
    "own_reward",
    "other_reward",
    "own_points",
    "pareto_optimal",
    "turns",
    "tokens",
    "blocked_offers",
    "injected",
)
"""What is kept of an episode."""
SHAPES: dict[str, dict[str, int]] = {
    "telesales": {"steps": 12, "scenarios_per_step": 8, "group_size": 8},
    "deal-or-no-deal": {"steps": 10, "scenarios_per_step": 8, "group_size": 6},
}
LEAGUE = "bilateral+league"
VARIANTS: dict[str, tuple[Method, dict[str, Any]]] = {
    # Fewer joint groups; other partners, the counterpart's earlier selves among them, are drawn by difficulty.
    LEAGUE: (Method.BILATERAL, {"joint_share": 0.25, "league_every": 3, "league_size": 2, "league_power": 2.0}),
}
MAIN = (Method.UNILATERAL_FROZEN, Method.UNILATERAL_SCRIPTED, Method.BILATERAL)
"""Run for every seed before the others begin."""
APART_SHARE = 3
"""Everything but the held-out families, partner and warm start is played on a third of the scenarios."""
QUICK = {"steps": 2, "scenarios_per_step": 2, "group_size": 4}


@dataclass(frozen=True)
class Job:
    """One agent to train and judge; ``method`` may be ``warm-start``: no training."""

    scenario: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.scenario}.{self.method}.{self.seed}"


@app.command()
def mismatch(
    work: Annotated[Path, typer.Option(help="Folder for jobs that are done and runs to go on with.")],
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds: 1 to this.")] = 5,
    scenarios: Annotated[int, typer.Option(min=2, help="Evaluation scenarios per counterpart.")] = 48,
    method: Annotated[list[str] | None, typer.Option(help="Only these methods (repeat the option).")] = None,
    scenario: Annotated[list[str] | None, typer.Option(help="Only these scenarios (repeat the option).")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes: tiny runs that show that it works.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for the table, the plots and the figures.")] = None,
    settings: Annotated[str, typer.Option(help="Training settings to change, as JSON.")] = "{}",
) -> None:
    """Train and judge every method, then print the comparison."""
    from mismatch_report import write_report

    known = [WARM_START, *map(str, MAIN), *(str(m) for m in Method if m not in MAIN), *VARIANTS]
    methods = [WARM_START, *(method or (map(str, MAIN[1:3]) if quick else known[1:]))]
    if unknown := [name for name in methods if name not in known]:
        raise typer.BadParameter(f"{unknown[0]!r} is no method: choose from {', '.join(known[1:])}")
    jobs = [
        Job(name, one, seed)
        for main in (True, False)
        for seed in range(1, (1 if quick else seeds) + 1)
        for name in scenario or NAMES
        for one in methods
        if (one in (WARM_START, *MAIN)) is main
    ]
    options = {
        "scenarios": min(scenarios, 6) if quick else scenarios,
        "quick": quick,
        "settings": json.loads(settings),
    }
    work.mkdir(parents=True, exist_ok=True)
    waiting = [job for job in jobs if not _result_file(work, job).exists()]
    console = Console()
    with Progress(*columns(), console=console) as progress, ThreadPoolExecutor(workers) as pool:
        task = progress.add_task("training and judging", total=len(jobs), completed=len(jobs) - len(waiting), note="")
        for job in pool.map(lambda job: _in_process(work, job, options), waiting):
            progress.update(task, advance=1, note=job.name)
    results = {(job.scenario, job.method, job.seed): _read(_result_file(work, job)) for job in jobs}
    write_report(results, output, console)


def _result_file(work: Path, job: Job) -> Path:
    return work / f"{job.name}.json.gz"


def _read(file: Path) -> dict[str, Any]:
    """A result, its episodes as rows again."""
    result: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    tables: dict[str, dict[str, list[Any]]] = result["episodes"]
    result["episodes"] = {
        name: [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        for name, table in tables.items()
    }
    return result


def _in_process(work: Path, job: Job, options: dict[str, Any]) -> Job:
    """A process of its own: one thread for torch, its memory given back, its failure not ours."""
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, __file__, "--job", json.dumps({**asdict(job), **options, "work": str(work)})]
    with (work / f"{job.name}.log").open("a", encoding="utf-8") as log:
        done = subprocess.run(command, env={**os.environ, **threads}, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise RuntimeError(f"{job.name} failed: see {work / f'{job.name}.log'}")
    return job


def run_job(job: Job, work: Path, scenarios: int, quick: bool, changes: dict[str, Any]) -> None:
    """Train (unless it is the warm start), judge, and write the result down in one rename."""
    first = _result_file(work, replace(job, seed=1))
    if job.method == WARM_START and job.seed > 1 and first.exists():
        # Nothing is trained and the scenarios are the same for every seed: so is the result.
        _result_file(work, job).write_bytes(first.read_bytes())
        return
    loaded = load_settings(None)
    shape = QUICK if quick else SHAPES[job.scenario]
    health = {**loaded.training.health.model_dump(), "action": "warn"}
    fields = {**loaded.training.model_dump(), **shape, "health": health, "threads": 1, "validation_every": 0}
    if job.method != WARM_START:
        method, variant = VARIANTS.get(job.method, (job.method, {}))
        fields |= {"method": method, **variant}
    training = TrainingSettings.model_validate({**fields, "seed": job.seed, "micro_batch": 24, **changes})
    settings = loaded.model_copy(update={"training": training})
    model = resolve_base_model(settings.base_model)
    scenario = scenario_named(job.scenario)
    engine = open_engine(settings, model, training=True)
    result: dict[str, Any] = {"settings": training.model_dump(mode="json")}
    agent, counterpart = BASE, BASE
    try:
        if job.method != WARM_START:
            trained = cotrain(
                training,
                engine,
                scenario,
                lambda index: scenario.generate(job.seed * SPAN + index),
                dict.fromkeys(Role),
                job.seed,
                work / "runs" / job.name,
                base_reference(model),
                lambda at: print(at.step, at.metrics[Role.AGENT], flush=True),
            )
            result["price"] = asdict(trained.price)
            shown = ("success", "agreement", "reward", "kl", "entropy", "base_nll", "zero_variance_groups")
            result["curves"] = {
                role: {name: [round(row[name], 4) for row in rows] for name in shown}
                for role, rows in trained.metrics.items()
            }
            for directory in trained.adapters.values():
                engine.load_adapter(directory.name, directory)
            agent = trained.adapters[Role.AGENT].name
            if Role.COUNTERPART in trained.adapters:
                counterpart = trained.adapters[Role.COUNTERPART].name
        began = time.monotonic()
        result["base_sha256"] = model.sha256
        result["episodes"] = _judge(engine, job, agent, counterpart, scenarios)
        result["evaluation_seconds"] = time.monotonic() - began
    finally:
        engine.close()
    target = _result_file(work, job)
    partial = target.with_suffix(".partial")
    # No time in the archive: the same result is the same file.
    partial.write_bytes(gzip.compress(json.dumps(result).encode(), mtime=0))
    partial.rename(target)


def _judge(engine: Any, job: Job, agent: str, counterpart: str, scenarios: int) -> dict[str, dict[str, list[Any]]]:
    """Episodes by what the agent was played against, as columns."""
    scenario = scenario_named(job.scenario)
    # The same scenarios for every seed and method: all differences are then paired.
    whole, part = (range(HELD_OUT_SEED, HELD_OUT_SEED + n) for n in (scenarios, max(2, scenarios // APART_SHARE)))
    splits = {
        name: negotiators(job.scenario, Role.COUNTERPART, name)
        for name in ("held_out", "train", "validation", "enterprise", "adversary")
    }
    opponents: dict[str, Any] = {**splits, "warm_started": (ModelPlayer(BASE),)}
    if counterpart != BASE:
        opponents["own_counterpart"] = (ModelPlayer(counterpart),)

    def played(result: EvaluationResult) -> dict[str, list[Any]]:
        return {field: [getattr(episode, field) for episode in result.episodes] for field in KEPT}

    found = {
        name: played(
            evaluate(engine, scenario, agent, Role.AGENT, who, part if name in ("validation", *APART) else whole)
        )
        for name, who in opponents.items()
    }
    partner = "train" if job.method == Method.UNILATERAL_SCRIPTED else "warm_started"
    found["partner"] = found["own_counterpart"] if counterpart != BASE else found[partner]
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        given = json.loads(sys.argv[2])
        job = Job(given["scenario"], given["method"], given["seed"])
        run_job(job, Path(given["work"]), given["scenarios"], given["quick"], given["settings"])
    else:
        app()
