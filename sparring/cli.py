"""The command line. Exit codes: 0 it worked, 1 the answer is no (or something failed), 2 it was misused.

Run ``sparring --help``.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer
from typer.core import TyperGroup

from sparring import __version__
from sparring.commands import (
    cotrain,
    data,
    dead_letters,
    demo,
    evaluate,
    keys,
    learning,
    model,
    options,
    registry,
    service,
    topics,
    warm_start,
)
from sparring.errors import MisuseError, RefusedError

_QUIET = {
    # Nothing that we start reports home unless the user asked for it.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Bars for files of a few kilobytes only clutter the logs.
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


class _Front(TyperGroup):
    """Turns what went wrong into one plain line and an exit code."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        from negotiation.corpus import CorpusError
        from negotiation.event_log import EventLogUnavailable
        from negotiation.scenario import ScenarioError

        try:
            return super().invoke(ctx)
        except (MisuseError, CorpusError, ScenarioError, EventLogUnavailable) as error:
            options.say(f"error: {error}")
            raise typer.Exit(options.MISUSED) from error
        except RefusedError as error:
            options.say(f"no: {error}")
            raise typer.Exit(options.SAID_NO) from error


app = typer.Typer(
    cls=_Front,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serves negotiation agents, trains both sides of the table, and promotes only what is better.",
    epilog="Begin with: sparring demo --once. Every command has --help with an example.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the command."""
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)


app.command(epilog="Example: sparring demo --once")(demo.demo)
app.command(epilog="Example: sparring serve --port 9000")(service.serve)
app.command(epilog="Example: sparring worker --config sparring.toml")(service.worker)
app.command(epilog="Example: sparring train --method bilateral --json > round.json")(learning.train)
app.command(epilog="Example: sparring cotrain --method self-play --seed 2 --output runs/self-play-2")(cotrain.cotrain)
app.command("warm-start", epilog="Example: sparring warm-start --role agent --output adapters")(warm_start.warm_start)
app.command(epilog="Example: sparring evaluate --role agent --version 3 --scenarios 100")(evaluate.evaluate)
app.command(epilog="Example: sparring gate --role agent --version 3")(registry.gate)
app.command(epilog="Example: sparring promote --role agent --version 3")(registry.promote)
app.command(epilog="Example: sparring rollback --role agent --to 2")(registry.rollback)
app.command(epilog="Example: sparring adapters --json")(registry.adapters)
app.command("replay", epilog="Example: sparring replay dialogues.txt")(data.replay_corpus)
app.add_typer(data.dataset_app, name="dataset")
app.add_typer(dead_letters.app, name="dead-letter")
app.add_typer(keys.app, name="keys")
app.add_typer(model.app, name="model")
app.add_typer(topics.app, name="topics")


if __name__ == "__main__":
    app()
