"""``sparring evaluate``: one version's whole examination."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from negotiation.roles import Role
from sparring.commands.options import ConfigOption, JsonOption, print_json, progress_bar, say, settings_from
from sparring.errors import MisuseError
from training.counterparts import Split

if TYPE_CHECKING:
    from training.counterparts.endpoint import EndpointNegotiator
    from training.evaluation_report import SuiteReport


def evaluate(
    role: Annotated[Role, typer.Option(help="Whose adapter to judge.")] = Role.AGENT,
    version: Annotated[int | None, typer.Option(min=1, help="Version number (default: the champion).")] = None,
    scenarios: Annotated[
        int | None, typer.Option(min=2, max=9999, help="Seeded scenarios per counterpart (default: as configured).")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPLIT",
            help=f"Counterparts of the pool, repeatable: {', '.join(get_args(Split))} (default: held_out, enterprise "
            "and adversary, where there are any).",
        ),
    ] = None,
    counterpart_version: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Version of the other role that it was co-trained with (default: the same number, if it is ready).",
        ),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="An OpenAI-compatible endpoint as one more counterpart.")
    ] = None,
    endpoint_model: Annotated[str | None, typer.Option(metavar="NAME", help="The model to ask it for.")] = None,
    endpoint_key_env: Annotated[
        str | None, typer.Option(metavar="VAR", help="Environment variable that holds its API key.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", file_okay=False, help="Write report.json, table.md and plots here.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play a version against counterparts that training never met, beside its baselines, with 95 % intervals.

    The warm start and a policy that accepts everything play the same conversations. Adversaries and the fixed
    enterprise policy stand apart from the average. The scripted training families and the co-trained version of the
    other role are played too: success there, less success against held-out counterparts, is the mismatch.
    """
    from sparring.evaluation_tables import write_report
    from sparring.judge import evaluate_version

    splits = _splits(against)
    settings = settings_from(config, {"pipelines": {"evaluation_scenarios": scenarios}})
    if output is not None:
        _make(output)
    endpoints = _endpoints(role.other, endpoint, endpoint_model, endpoint_key_env)
    try:
        with progress_bar("conversations") as progress:
            report = evaluate_version(
                settings,
                role,
                version,
                splits=splits,
                counterpart_version=counterpart_version,
                endpoints=endpoints,
                progress=progress,
            )
    finally:
        for negotiator in endpoints:
            negotiator.close()
    if as_json:
        print_json(report)
    else:
        _print_tables(report.suite)
    if output is not None:
        for path in write_report(report.suite, output):
            say(f"wrote {path}")


def _print_tables(report: SuiteReport) -> None:
    from rich.console import Console

    from sparring.evaluation_tables import as_rich, headline, sections

    console = Console(highlight=False)
    console.print(headline(report))
    for section in sections(report):
        console.print()
        console.print(section.title, style="bold")
        console.print(as_rich(section))
    if report.absent_splits:
        say(f"no counterparts for the {report.role} in: {', '.join(report.absent_splits)}")


def _splits(names: list[str] | None) -> list[Split] | None:
    if not names:
        return None
    known = {split: split for split in get_args(Split)}
    if unknown := [name for name in names if name not in known]:
        raise MisuseError(f"--against {unknown[0]}: no such split, known: {', '.join(known)}")
    return [known[name] for name in names]


def _endpoints(
    role: Role, url: str | None, model: str | None, key_variable: str | None
) -> tuple[EndpointNegotiator, ...]:
    """The endpoint, asked once whether it answers: better now than after an hour of play. The caller closes it."""
    if url is None:
        if model is not None or key_variable is not None:
            raise MisuseError("--endpoint-model and --endpoint-key-env need --endpoint URL")
        return ()
    if model is None:
        raise MisuseError(f"--endpoint {url} needs --endpoint-model NAME: the model to ask it for")
    key = None
    if key_variable is not None:
        key = os.environ.get(key_variable)
        if not key:
            raise MisuseError(f"--endpoint-key-env {key_variable}: that variable is not set; export the key in it")
    from training.counterparts.endpoint import EndpointNegotiator, EndpointUnreachable

    negotiator = EndpointNegotiator(role, url, model, api_key=key)
    try:
        negotiator.check()
    except EndpointUnreachable as error:
        negotiator.close()
        raise MisuseError(f"--endpoint: {error}") from error
    return (negotiator,)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MisuseError(f"--output {directory}: can not be made a folder ({error}); name another") from error
