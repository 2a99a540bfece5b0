"""Command line of ``sparring.event_contract``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparring.event_contract import differing, write


def main(
    output: Annotated[Path, typer.Option(help="Folder of the documents.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 if a file differs.")] = False,
) -> None:
    """Write the event contract: JSON Schemas and an AsyncAPI document."""
    if not check:
        for name in write(output):
            typer.echo(output / name)
        return
    wrong = differing(output)
    for name, why in wrong.items():
        typer.echo(f"{output / name}: {why}", err=True)
    if wrong:
        typer.echo(f"run: python -m sparring.event_contract --output {output}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
