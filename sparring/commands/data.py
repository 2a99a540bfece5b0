"""``sparring replay`` and ``sparring dataset``: recorded conversations in, figures out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sparring.commands.options import ConfigOption, JsonOption, print_json, progress_bar, say, settings_from

dataset_app = typer.Typer(no_args_is_help=True, help="The dataset of finished conversations.")


def replay_corpus(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A corpus in the dialogues.txt format.")
    ],
    tenant: Annotated[str, typer.Option(help="The tenant that the conversations are booked under.")] = "replay",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a recorded Deal-or-NoDeal corpus as conversation events. Repeating it publishes nothing twice."""
    from pipelines.replay import replay
    from sparring.compose import open_event_log

    settings = settings_from(config)
    log = open_event_log(settings)
    try:
        with progress_bar("replaying") as advance:
            report = replay(file, log, tenant, advance)
    finally:
        log.close()
    if as_json:
        print_json(report)
        return
    place = settings.pipelines.event_log_place
    say(f"{report.conversations:,} conversations, {report.events:,} events are in {place}")
    say("Next: sparring dataset summary")


@dataset_app.command(epilog="Example: sparring dataset summary --scenario deal-or-no-deal --json")
def summary(
    scenario: Annotated[str | None, typer.Option(help="Only this scenario.")] = None,
    source: Annotated[str | None, typer.Option(help="Only live, simulated or replay.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the dataset up to date with the event log, then print its figures."""
    from pipelines.conversations import summarise
    from sparring.compose import open_dataset_writer, open_event_log

    settings = settings_from(config)
    log = open_event_log(settings)
    try:
        writer = open_dataset_writer(settings, log)
        try:
            with progress_bar("events") as advance:
                writer.consume(advance)
        finally:
            writer.close()
    finally:
        log.close()
    found = summarise(settings.pipelines.datasets_dir, scenario=scenario, source=source)
    if as_json:
        print_json(asdict(found))
        return
    for line in found.lines():
        typer.echo(line)
