"""``sparring dead-letter``: events that no consumer could make sense of, and another try at them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparring.commands.options import ConfigOption, JsonOption, print_json, printable, say, settings_from
from sparring.errors import MisuseError, RefusedError

if TYPE_CHECKING:
    from negotiation.event_log import DeadLetter, EventLog

app = typer.Typer(no_args_is_help=True, help="Events that were set aside because nobody could make sense of them.")


@app.command("list", epilog="Example: sparring dead-letter list --reason 'record: json_invalid'")
def list_letters(
    reason: Annotated[str | None, typer.Option(help="Show each one of this reason, with its id.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count them by reason, or name those of one reason. What they say is shown by `show` alone."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    with _event_log(config) as (log, place):
        if reason is None:
            rows: list[dict[str, Any]] = _by_reason(log)
        else:
            rows = [_plain(letter) for letter in log.each_dead_letter() if letter.reason == reason]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say(f"no dead letter{'' if reason is None else f' of reason {reason!r}'} in {place}")
        return
    table = Table(*rows[0], box=None)
    for row in rows:
        # As Text, which knows no markup: brackets are the reason's own.
        table.add_row(*(Text(printable("" if value is None else str(value))) for value in row.values()))
    Console().print(table)


@app.command(epilog="Example: sparring dead-letter show 0-1234")
def show(
    letter_id: Annotated[str, typer.Argument(help="The id that `sparring dead-letter list` shows.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print one of them with its body, which may hold what a customer wrote.

    What could steer a terminal is shown escaped; --json has the body as it is.
    """
    with _event_log(config) as (log, place):
        letter = _find(log, letter_id, place)
    body = letter.body.decode("utf-8", "replace")
    if as_json:
        print_json({**_plain(letter), "body": body})
        return
    for key, value in _plain(letter).items():
        if value is not None:
            typer.echo(printable(f"{key}: {value}"))
    typer.echo(printable(body, keep="\n\t"))


@app.command(epilog="Example: sparring dead-letter retry 0-1234")
def retry(
    letter_id: Annotated[str | None, typer.Argument(help="One of them, by id.")] = None,
    reason: Annotated[str | None, typer.Option(help="All of this reason.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read it with this release, and append it to the log again. Those that still can not be read stay."""
    from negotiation.event_log import EventRefused
    from negotiation.events import UnreadableEvent

    if (letter_id is None) == (reason is None):
        raise MisuseError("name one dead letter by its id, or all of a reason with --reason; not both")
    retried, refused = 0, dict[str, str]()
    with _event_log(config) as (log, place):
        if letter_id is not None:
            letters = [_find(log, letter_id, place)]
        else:
            letters = [letter for letter in log.each_dead_letter() if letter.reason == reason]
        for letter in letters:
            try:
                log.retry(letter)
                retried += 1
            except (UnreadableEvent, EventRefused) as error:
                refused[letter.id] = str(error)
    if as_json:
        print_json({"retried": retried, "refused": refused})
    else:
        say(f"{retried} appended to {place} again")
    if refused:
        first, why = next(iter(refused.items()))
        raise RefusedError(f"{len(refused)} still can not be taken and stay where they are, the first {first}: {why}")
    if not letters:
        raise RefusedError(f"no dead letter of reason {reason!r} in {place}")


@contextmanager
def _event_log(config: Path | None) -> Iterator[tuple[EventLog, str]]:
    from sparring.compose import open_event_log

    settings = settings_from(config)
    log = open_event_log(settings)
    try:
        yield log, settings.pipelines.event_log_place
    finally:
        log.close()


def _by_reason(log: EventLog) -> list[dict[str, Any]]:
    found: dict[str, list[DeadLetter]] = defaultdict(list)
    for letter in log.each_dead_letter():
        found[letter.reason].append(letter)
    return [
        {
            "reason": reason,
            "count": len(letters),
            "newest": max(letter.recorded_at for letter in letters).isoformat(timespec="seconds"),
            "first_id": letters[0].id,
        }
        for reason, letters in sorted(found.items())
    ]


def _plain(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "reason": letter.reason,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "recorded_at": letter.recorded_at.isoformat(timespec="seconds"),
        "cut_from_bytes": letter.cut_from,
    }


def _find(log: EventLog, letter_id: str, place: str) -> DeadLetter:
    found = next((letter for letter in log.each_dead_letter() if letter.id == letter_id), None)
    if found is None:
        raise RefusedError(f"no dead letter {letter_id} in {place}: `sparring dead-letter list` shows what there is")
    return found
