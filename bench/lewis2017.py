"""Deal-or-NoDeal as in Lewis et al. 2017 (arXiv 1706.05125): LIKELIHOOD, then RL against it, beside their figures.

Per seed: (1) a small Llama learns from nothing to say what people said (LIKELIHOOD); (2) it negotiates with itself
on contexts that no dialogue of the corpus had; (3) its agent learns by reinforcement, against the frozen LIKELIHOOD
model and together with a learning counterpart, and each agent is judged against the frozen LIKELIHOOD model. Every
stage is kept in the work folder, so that an interrupted run goes on where it was.

The corpus (CC BY-NC 4.0) is not part of this project: name a folder that holds its ``dialogues.txt`` and
``contexts.txt``. The models are for measuring and stay in the work folder. Left out: their rollouts, and people.

Run: ``python bench/lewis2017.py --corpus deal-or-no-deal --work lewis --output lewis2017.json``. About half an hour a
seed on one core; ``--quick`` shows in a minute that it runs. Results: docs/experiments/lewis2017.md.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from lewis2017_likelihood import Recipe, build_likelihood, corpus_dialogues
from lewis2017_selfplay import MEASURES, Estimate, Talk, negotiate, scores
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from negotiation.corpus import CorpusDialogue, read_contexts
from negotiation.generation import BASE
from negotiation.roles import Role
from negotiation.scenario import Context
from serving.engines.in_process import InProcessEngine
from sparring.progress import columns
from training.artifacts import BaseModelRef
from training.base_model import TINY

app = typer.Typer(add_completion=False)
TEMPERATURE = 0.5
"""What their published command for self-play samples at (README of facebookresearch/end-to-end-negotiator)."""
MESSAGE_TOKENS = 40
_BATCH = 128
PUBLISHED = {
    "LIKELIHOOD": (5.4, 5.5, 6.2, 6.2, 0.879, 0.496),
    "RL": (7.1, 4.2, 7.9, 4.7, 0.899, 0.586),
}
"""Their Table 1 against the LIKELIHOOD model, in the order of MEASURES. The first row was checked against the text of
the paper; the second is as quoted from memory and could not be checked."""
METHODS = {"RL": "unilateral-frozen", "co-trained": "bilateral"}
"""Row of the table to training method."""
Show = Callable[[str, int, int, str], None]


@app.command()
def lewis2017(
    corpus: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder with dialogues.txt and contexts.txt.")
    ],
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Seeds, a whole run each (default: 1).")] = None,
    work: Annotated[Path, typer.Option(help="Folder of finished stages, models included.")] = Path("lewis2017-work"),
    reinforce: Annotated[bool, typer.Option(help="Train by reinforcement too, not LIKELIHOOD alone.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="A tiny model, few steps: shows that it runs.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where to write the figures as JSON.")] = None,
) -> None:
    """Measure LIKELIHOOD and reinforcement learning on Deal-or-NoDeal as Lewis et al. 2017 did."""
    torch.set_num_threads(1)
    console = Console()
    dialogues = corpus_dialogues(corpus / "dialogues.txt")
    seen, unseen = _contexts(corpus / "contexts.txt", dialogues)
    digest = hashlib.sha256((corpus / "dialogues.txt").read_bytes()).hexdigest()
    runs: dict[int, dict[str, Any]] = {}
    with Progress(*columns(), console=console) as bars:
        for seed in seeds or [1]:
            run = _Run(work / f"seed-{seed}", seed, quick, digest, bars)
            runs[seed] = run.everything(dialogues, seen, unseen, reinforce)
    for seed, found in runs.items():
        console.print(_table(seed, found))
        human = found["likelihood"]["human"]
        console.print(
            f"LIKELIHOOD: perplexity {human['perplexity_after']:.2f} on held-out own tokens (epoch "
            f"{human['best_epoch']} of {human['epochs']}), {found['likelihood']['statements']:.1%} of held-out "
            f"statements as the human's; {found['contexts']} contexts that the corpus' dialogues do not have"
        )
    if output is not None:
        output.write_text(json.dumps({"published": PUBLISHED, "seeds": runs}, indent=1) + "\n", encoding="utf-8")


class _Run:
    """One seed's stages. What is finished is read from the work folder, if it was made with the same recipe."""

    def __init__(self, folder: Path, seed: int, quick: bool, digest: str, bars: Progress) -> None:
        self.folder, self.seed, self.quick, self.digest, self._bars = folder, seed, quick, digest, bars
        self.recipe = Recipe(seed=seed)
        if quick:
            small = TINY.__class__(**{**asdict(TINY), "vocabulary": 500})
            self.recipe = Recipe(
                seed=seed, size=small, copies=32, wishes=32, games=32, epochs=1, statement_epochs=1, epoch_views=64
            )

    def everything(
        self, dialogues: list[CorpusDialogue], seen: list[Context], unseen: list[Context], reinforce: bool
    ) -> dict[str, Any]:
        """All figures of this seed as plain values."""
        contexts = unseen[:4] if self.quick else unseen
        model = self.folder / "likelihood"
        recipe = {"recipe": self.recipe.model_dump(mode="json"), "corpus": self.digest}
        with self._bar("LIKELIHOOD") as show:
            likelihood = self._stage(
                "likelihood", recipe, lambda: asdict(build_likelihood(dialogues, self.recipe, model, show))
            )
        base = BaseModelRef(model, "likelihood", likelihood["sha256"])
        rows = {"LIKELIHOOD": self._judged("LIKELIHOOD", base, None, contexts)}
        training: dict[str, Any] = {}
        for label, method in METHODS.items() if reinforce else ():
            training[label] = self._reinforced(label, method, base, seen)
            rows[label] = self._judged(label, base, self.folder / method / "agent@1", contexts)
        return {"likelihood": likelihood, "training": training, "rows": rows, "contexts": len(contexts)}

    def _judged(
        self, label: str, base: BaseModelRef, adapter: Path | None, contexts: list[Context]
    ) -> dict[str, Any]:
        """Scores of an agent (None: the LIKELIHOOD model) against the LIKELIHOOD model."""

        def make() -> dict[str, Any]:
            engine = _engine(base)
            try:
                if adapter is not None:
                    engine.load_adapter(adapter.name, adapter)
                talks, played = negotiate(
                    engine,
                    BASE if adapter is None else adapter.name,
                    BASE,
                    contexts,
                    temperature=TEMPERATURE,
                    seed=self.seed,
                    max_message_tokens=MESSAGE_TOKENS,
                    show=lambda done, of: show("", done, of, ""),
                )
            finally:
                engine.close()
            samples = [[f"{turn.role}: {turn.text}" for turn in one.state.turns] for one in played[:12]]
            return {"talks": [asdict(talk) for talk in talks], "samples": samples}

        weights = None if adapter is None else hashlib.sha256((adapter / "manifest.json").read_bytes()).hexdigest()
        recipe = {"base": base.sha256, "agent": weights, "temperature": TEMPERATURE, "contexts": len(contexts)}
        with self._bar(f"{label} against LIKELIHOOD") as show:
            found = self._stage(f"talks-{METHODS.get(label, 'likelihood')}", recipe, make)
        talks = [Talk(**talk) for talk in found["talks"]]
        closed = [talk.closed for talk in talks]
        return {
            **{measure: _plain(estimate) for measure, estimate in scores(talks).items()},
            "dialogues": len(talks),
            "turns": sum(talk.turns for talk in talks) / len(talks),
            "endings": {reason: closed.count(reason) / len(closed) for reason in sorted(set(closed))},
        }

    def _reinforced(self, label: str, method: str, base: BaseModelRef, contexts: list[Context]) -> dict[str, Any]:
        from lewis2017_reinforcement import Reinforcement, train_agent

        from training.methods import Method

        recipe = Reinforcement(seed=self.seed, max_message_tokens=MESSAGE_TOKENS)
        if self.quick:
            recipe = recipe.model_copy(update={"steps": 1, "scenarios_per_step": 2, "group_size": 2})

        def make() -> dict[str, Any]:
            engine = _engine(base)
            try:
                return train_agent(
                    Method(method),
                    recipe,
                    engine,
                    base,
                    contexts,
                    self.folder / method,
                    lambda done, of, note: show("", done, of, note),
                )
            finally:
                engine.close()

        with self._bar(f"{label} learns") as show:
            return self._stage(
                method, {"base": base.sha256, "method": method, "recipe": recipe.model_dump(mode="json")}, make
            )

    def _stage(self, name: str, recipe: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The kept result of a stage, else a new one. Raises BadParameter where it was made in another way."""
        file = self.folder / f"{name}.json"
        if file.exists():
            kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if kept["recipe"] != recipe:
                raise typer.BadParameter(f"{file} was made with other settings: remove it, or name another --work")
            return dict(kept["result"])
        self.folder.mkdir(parents=True, exist_ok=True)
        result = json.loads(json.dumps(make(), default=str))
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps({"recipe": recipe, "result": result}, indent=1) + "\n", encoding="utf-8")
        partial.replace(file)
        return dict(result)

    @contextmanager
    def _bar(self, label: str) -> Any:
        task = self._bars.add_task(f"seed {self.seed}: {label}", total=None, note="")

        def show(stage: str, done: int, of: int, note: str) -> None:
            self._bars.update(task, completed=done, total=of, note=" ".join(part for part in (stage, note) if part))

        yield show
        self._bars.update(task, total=1, completed=1)


def _engine(base: BaseModelRef) -> InProcessEngine:
    return InProcessEngine(base.path, base.sha256, max_adapters=4, max_batch=_BATCH, threads=1)


def _contexts(file: Path, dialogues: list[CorpusDialogue]) -> tuple[list[Context], list[Context]]:
    """Contexts that dialogues of the corpus had, and those that none had, each once whichever side comes first."""

    def key(counts: Any, one: Any, two: Any) -> tuple[Any, ...]:
        return tuple(counts), *sorted((tuple(one), tuple(two)))

    met = {key(dialogue.counts, dialogue.own, dialogue.other) for dialogue in dialogues}
    found: dict[tuple[Any, ...], Context] = {}
    with file.open(encoding="utf-8") as lines:
        for context in read_contexts(lines, str(file)):
            values = (context.views[role]["values"] for role in Role)
            found.setdefault(key(context.public["counts"], *values), context)
    parts = [[context for name, context in found.items() if (name in met) is kind] for kind in (True, False)]
    if not all(parts):
        raise typer.BadParameter(
            f"{file}: {len(parts[0])} contexts that dialogues.txt has and {len(parts[1])} that it does not have; "
            "at least one of each is needed, to train on and to judge on"
        )
    return parts[0], parts[1]


def _table(seed: int, found: dict[str, Any]) -> Table:
    table = Table(
        "agent, against LIKELIHOOD", "score (all)", "score (agreed)", "agreed", "Pareto", title=f"seed {seed}"
    )
    for label, figures in found["rows"].items():
        shown = [_shown(figures[measure], 100 if "score" not in measure else 1) for measure in MEASURES]
        table.add_row(
            label, f"{shown[0]} vs. {shown[1]}", f"{shown[2]} vs. {shown[3]}", f"{shown[4]} %", f"{shown[5]} %"
        )
        if label in PUBLISHED:
            told = PUBLISHED[label]
            table.add_row(
                "  Lewis et al. 2017" + ("" if label == "LIKELIHOOD" else " (not verified)"),
                f"{told[0]} vs. {told[1]}",
                f"{told[2]} vs. {told[3]}",
                f"{100 * told[4]:.1f} %",
                f"{100 * told[5]:.1f} %",
                style="dim",
            )
    return table


def _plain(estimate: Estimate) -> dict[str, float | None]:
    """JSON has no NaN: nothing agreed, nothing to average."""
    return {key: None if math.isnan(value) else value for key, value in asdict(estimate).items()}


def _shown(figure: dict[str, float | None], scale: float) -> str:
    values = [figure[key] for key in ("mean", "low", "high")]
    mean, low, high = (f"{scale * value:.1f}" if value is not None else "none" for value in values)
    return f"{mean} [{low}, {high}]"


if __name__ == "__main__":
    app()
