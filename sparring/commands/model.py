"""``sparring model``: the small base model that ships with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparring.commands.options import JsonOption, print_json, progress_bar, say
from sparring.errors import MisuseError

app = typer.Typer(no_args_is_help=True, help="The bundled base model.")


@app.command(epilog="Example: sparring model build --output my-model --seed 1")
def build(
    output: Annotated[Path, typer.Option(help="A new or empty directory for the model.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same weights on the same machine.")] = 0,
    dialogues: Annotated[
        int | None, typer.Option(min=16, help="Scripted dialogues to learn from (default: as shipped).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build the base model from nothing: scripted dialogues, tokenizer, warm start. Takes minutes."""
    from training.warm_start import WarmStartSettings, build_base_model

    settings = WarmStartSettings(seed=seed, **({} if dialogues is None else {"dialogues": dialogues}))
    try:
        with progress_bar("warm start, loss      ") as advance:
            losses: list[float] = []

            def report(step: int, of: int, loss: float) -> None:
                losses.append(loss)
                advance(step, of)

            built = build_base_model(output, settings, report)
    except ValueError as error:
        raise MisuseError(str(error)) from error
    if as_json:
        print_json(built)
        return
    say(f"{built.parameters:,} parameters, {built.steps} steps, {built.tokens:,} tokens, loss {built.final_loss:.3f}")
    say(f"sha256 {built.sha256}")
    say(f"Use it: SPARRING_BASE_MODEL={output} sparring serve")
