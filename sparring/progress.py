"""Draws a round as it goes: where it stands, and how both roles fare. Used by ``sparring train`` and the demo."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

_PHASES = {
    "starting": "worker starts",
    "idle": "worker waits for conversations",
    "consuming": "events into the dataset",
    "calibrating": "contexts from conversations",
    "refreshing": "real customers' words",
    "training": "co-training, both roles",
    "evaluating": "evaluating on unseen scenarios",
    "registering": "registering in MLflow",
    "done": "round done",
}
_SHOWN = ("reward", "success")
LABEL_WIDTH, BAR_WIDTH = 29, 12
_ROLES = ("agent", "counterpart")


def columns() -> tuple[ProgressColumn, ...]:
    """Label, bar, count, time and a note: fits a terminal of 80 characters."""
    return (
        TextColumn(f"{{task.description:<{LABEL_WIDTH}}}"),
        BarColumn(bar_width=BAR_WIDTH),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )


class RoundBars:
    """A context manager. Feed it what the worker's status or a round's progress says."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            *columns(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._phase: str | None = None

    def __enter__(self) -> RoundBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, phase: str, step: int, of: int, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """``metrics``: the latest of training, by role."""
        if phase != self._phase:
            self._finish()
            self._phase = phase
        learning = [role for role in _ROLES if role in metrics] or _ROLES[:1]
        names = [f"training {role}" for role in learning] if phase == "training" else [_PHASES.get(phase, phase)]
        for name in names:
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=None, note="")
            role = name.removeprefix("training ")
            note = _note(metrics.get(role, {})) if phase == "training" else ""
            self._progress.update(self._tasks[name], completed=step, total=of or None, note=note)

    def _finish(self) -> None:
        """What is over stands still and full."""
        for task in self._progress.tasks:
            if not task.finished:
                total = task.total or 1
                self._progress.update(task.id, completed=total, total=total)
                self._progress.stop_task(task.id)


def _note(metrics: Mapping[str, float]) -> str:
    return " ".join(f"{name} {metrics[name]:.2f}" for name in _SHOWN if name in metrics)
