"""``sparring warm-start``: a role's adapter from conversations, by supervised fine-tuning."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from negotiation.roles import Role
from sparring.commands.options import ConfigOption, JsonOption, print_json, progress_bar, say, settings_from
from sparring.errors import MisuseError


def warm_start(
    role: Annotated[Role, typer.Option(help="Whose adapter to train, on this role's own words only.")],
    output: Annotated[Path, typer.Option(help="Folder that receives the adapter, as agent@N or counterpart@N.")],
    corpus: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            help="A corpus in the dialogues.txt format (default: the dataset of finished conversations).",
        ),
    ] = None,
    version: Annotated[int, typer.Option(min=1, help="Version number of the adapter.")] = 1,
    epochs: Annotated[int | None, typer.Option(min=1, help="Most passes over the conversations.")] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Epochs without a lower held-out perplexity before it stops.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(min=0, max=1, help="Peak learning rate.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, order and of what is held out.")] = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one role's adapter on recorded conversations; stop when held-out perplexity no longer falls.

    The best epoch's adapter is exported. One conversation in ten is held out.
    """
    from negotiation.adapter import AdapterName
    from sparring.recordings import from_corpus, from_log, learn

    settings = settings_from(config)
    name = AdapterName(role=role, version=version)
    directory = output / str(name)
    if directory.exists():
        raise MisuseError(f"{directory} exists: adapter versions are immutable, choose another --version")
    if corpus is not None:
        recordings = from_corpus(corpus, role)
    else:
        with progress_bar("events") as advance:
            recordings = from_log(settings, advance)
    options = {"seed": seed, "epochs": epochs, "patience": patience, "learning_rate": learning_rate}
    with progress_bar("warm start, steps") as advance:
        report = learn(settings, recordings, name, output, options, lambda at: advance(at.step, at.of))
    for reason, count in sorted(recordings.left_out.items()):
        say(f"left out: {count:,} {reason}")
    if as_json:
        manifest = report.manifest.model_dump(mode="json") if report.manifest else None
        print_json({**asdict(report), "manifest": manifest, "left_out": dict(recordings.left_out)})
        return
    say(
        f"perplexity on held-out own tokens: {report.perplexity_before:.2f} before, {report.perplexity_after:.2f} "
        f"after (epoch {report.best_epoch} of {report.epochs})"
    )
    say(f"{report.views:,} conversations, {report.tokens:,} own tokens; {report.held_out_views:,} held out")
    typer.echo(report.adapter)
