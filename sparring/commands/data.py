"""``sparring replay`` and ``sparring dataset``: recorded conversations in, figures out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from sparring.commands.options import ConfigOption, JsonOption, print_json, progress_bar, say, settings_from
from sparring.errors import MisuseError

T = TypeVar("T")
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
    found = _dataset(lambda: summarise(settings.pipelines.datasets_dir, scenario=scenario, source=source))
    if as_json:
        print_json(asdict(found))
        return
    for line in found.lines():
        typer.echo(line)


@dataset_app.command(epilog="Example: sparring dataset show --versions 5")
def show(
    versions: Annotated[int, typer.Option(min=1, help="How many of the newest versions.")] = 10,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """The dataset's versions: what each held, and its content hash."""
    from pipelines.dataset_files import read_manifest, read_versions

    directory = settings_from(config).pipelines.datasets_dir
    found = _dataset(lambda: read_versions(directory))[-versions:]
    if as_json:
        newest = _dataset(lambda: read_manifest(directory))
        print_json(
            {
                "newest": newest.model_dump(mode="json"),
                "versions": [version.model_dump(mode="json", exclude={"parts"}) for version in found],
            }
        )
        return
    if not found:
        say(f"{directory} has no version yet: run `sparring worker` or `sparring dataset summary`")
    for version in found:
        gone = "".join(f", {count:,} {why}" for why, count in version.gone.items())
        typer.echo(
            f"{version.version:>6}  {version.created_at:%Y-%m-%d %H:%M:%S}  {version.conversations:,} conversations, "
            f"{version.consented:,} with consent{gone}  {version.content_hash[:16]}"
        )


@dataset_app.command(epilog="Example: sparring dataset verify")
def verify(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check every file of the newest version against its manifest. Exit code 1 if one is not as it says."""
    from pipelines.dataset_files import held, problems, read_manifest

    directory = settings_from(config).pipelines.datasets_dir

    def check() -> tuple[int, list[str]]:
        with held(directory), progress_bar("conversations") as advance:
            return read_manifest(directory).conversations, problems(directory, advance)

    conversations, found = _dataset(check)
    if as_json:
        print_json({"conversations": conversations, "problems": found})
    else:
        for problem in found:
            typer.echo(problem)
        if not found:
            typer.echo(f"{conversations:,} conversations are as the manifest says")
    if found:
        raise typer.Exit(1)


@dataset_app.command(epilog="Example: sparring dataset export conversations.jsonl --scenario telesales")
def export(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="Where to: a name that ends in .parquet or .jsonl.")],
    scenario: Annotated[str | None, typer.Option(help="Only this scenario.")] = None,
    source: Annotated[str | None, typer.Option(help="Only live, simulated or replay.")] = None,
    config: ConfigOption = None,
) -> None:
    """Copy the newest version's conversations to one file. What is erased later is not erased from the copy."""
    from pipelines.conversations import rows
    from pipelines.dataset_files import export as write
    from pipelines.dataset_rows import SCHEMA

    if file.suffix not in (".parquet", ".jsonl"):
        raise MisuseError(
            f"{file}: end the file's name in .parquet or .jsonl, it ends in {file.suffix or 'nothing'!r}"
        )
    directory = settings_from(config).pipelines.datasets_dir
    count = _dataset(lambda: write(rows(directory, SCHEMA.names, scenario=scenario, source=source), file))
    say(f"{count:,} conversations are in {file}" if count else "no conversation matches: no file was written")


def _dataset(read: Callable[[], T]) -> T:
    """Read the dataset. Raises MisuseError where it is damaged or in use."""
    from pipelines.dataset_files import DatasetDamaged, DatasetInUse

    try:
        return read()
    except (DatasetDamaged, DatasetInUse) as error:
        raise MisuseError(str(error)) from error
