"""What every command shares: options, output, progress bars and settings."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparring.settings import Settings

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file. Default: SPARRING_CONFIG, else ./sparring.toml if there is one."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]

OK, SAID_NO, MISUSED = 0, 1, 2


def settings_from(config: Path | None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings, validated. Options that were not given (None) override nothing."""
    from sparring.settings import load_settings

    return load_settings(config, _given(overrides or {}))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: _given(value) if isinstance(value, dict) else value for key, value in options.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


def say(text: str = "") -> None:
    """Something for the reader; on standard error, so that results can be piped."""
    typer.echo(text, err=True)


def printable(text: str, keep: str = "") -> str:
    """Somebody else's text for a terminal: what would steer it is escaped, as are characters that hide.

    ``keep``: control characters that stay as they are.
    """
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )


def log_plainly(level: int = logging.INFO) -> None:
    """Log to standard error from ``level`` on, one line a record; kafka-python never below INFO."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # At DEBUG it writes the values of records, what customers said, and the password that it logs in with.
    logging.getLogger("kafka").setLevel(max(level, logging.INFO))


def print_json(value: Any) -> None:
    """A result as JSON on standard output."""
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    typer.echo(json.dumps(plain, indent=1, default=str))


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; call it with (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield advance
