"""``sparring topics``: the topics that Kafka must have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparring.commands.options import ConfigOption, JsonOption, print_json, say, settings_from
from sparring.errors import RefusedError

if TYPE_CHECKING:
    from pipelines.kafka_topics import TopicsReport

app = typer.Typer(no_args_is_help=True, help="The topics of an event log that is kept in Kafka.")


@app.callback()
def _main() -> None:
    """Stands here so that the one command keeps its name."""


@app.command(epilog="Example: sparring topics apply --dry-run")
def apply(
    grow: Annotated[
        bool, typer.Option("--grow", help="Add missing partitions to topics that exist. Breaks the order of keys.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, say what would be done.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create the topics that are missing, and tell what differs in those that exist. Repeating it changes nothing.

    Exit code 1 if differences remain.
    """
    from pipelines.kafka_topics import apply_topics
    from sparring.compose import kafka_settings

    kafka = kafka_settings(settings_from(config))
    if grow:
        say(
            "warning: after --grow, later events of a conversation may go to another partition than its earlier "
            "ones, so their order is lost for conversations open now. Stop the service first, or accept that."
        )
    report = apply_topics(kafka, grow=grow, dry_run=dry_run)
    if as_json:
        print_json(report)
    else:
        _print(report, dry_run)
    if report.differences:
        raise RefusedError(
            f"{len(report.differences)} settings of existing topics are not as configured: change them with Kafka's "
            "own tools (partitions with --grow), or correct [pipelines.kafka]"
        )


def _print(report: TopicsReport, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for names, done in ((report.created, "created"), (report.grown, "given more partitions")):
        for name in names:
            typer.echo(f"{name}: {would}{done}")
    for name in report.unchanged:
        typer.echo(f"{name}: as configured")
    for difference in report.differences:
        typer.echo(str(difference))
