"""``sparring keys``: API keys of tenants and operators. A running service follows every change at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.commands.options import ConfigOption, JsonOption, print_json, say, settings_from
from sparring.errors import MisuseError, RefusedError

if TYPE_CHECKING:
    from pathlib import Path

    from serving.auth import KeyStore

app = typer.Typer(no_args_is_help=True, help="API keys. Only their hashes are kept.")


@app.command(epilog="Example: sparring keys create --tenant acme --expires-in-days 90")
def create(
    tenant: Annotated[str, typer.Option(help="Whose conversations the key opens and sees.")],
    admin: Annotated[bool, typer.Option("--admin", help="A key for /admin/ instead of for conversations.")] = False,
    expires_in_days: Annotated[
        float | None, typer.Option(min=0.001, max=36_500, help="Days until it is refused (default: never).")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=0, help="Its own limit instead of the service's; 0: none.")
    ] = None,
    concurrent_requests: Annotated[
        int | None, typer.Option(min=0, help="Its own limit instead of the service's; 0: none.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it once. A running service takes it at once."""
    store, path = _store(config)
    expires_at = None if expires_in_days is None else datetime.now(UTC) + timedelta(days=expires_in_days)
    try:
        key = store.create_key(
            tenant,
            "admin" if admin else "tenant",
            expires_at=expires_at,
            requests_per_minute=requests_per_minute,
            concurrent_requests=concurrent_requests,
        )
    except ValueError as error:
        raise MisuseError(str(error)) from error
    if as_json:
        record = store.records()[-1].model_dump(mode="json", exclude={"sha256"})
        print_json({**record, "key": key, "file": str(path)})
        return
    say(f"Kept its hash in {path}. The key itself is shown only now:")
    typer.echo(key)


@app.command("list", epilog="Example: sparring keys list --json")
def list_keys(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the keys by id: whose, what for, until when. Never the key, nor its hash."""
    from rich.console import Console
    from rich.table import Table

    store, path = _store(config)
    records, now = store.records(), datetime.now(UTC)
    if as_json:
        print_json([{**r.model_dump(mode="json", exclude={"sha256"}), "expired": r.expired(now)} for r in records])
        return
    if not records:
        say(f"no key in {path}: make one with `sparring keys create`")
        return
    table = Table("id", "tenant", "scope", "created", "expires", "a minute", "at once", box=None)
    for record in records:
        expires = "never" if record.expires_at is None else f"{record.expires_at:%Y-%m-%d %H:%M}"
        table.add_row(
            record.id,
            record.tenant,
            record.scope,
            f"{record.created_at:%Y-%m-%d %H:%M}",
            f"{expires} (expired)" if record.expired(now) else expires,
            _limit(record.requests_per_minute),
            _limit(record.concurrent_requests),
        )
    Console().print(table)


@app.command(epilog="Example: sparring keys revoke 1f2e3d4c")
def revoke(
    key_id: Annotated[str, typer.Argument(help="The id that `sparring keys list` shows.")],
    config: ConfigOption = None,
) -> None:
    """Forget a key: the next request with it is refused, by a running service too."""
    store, _ = _store(config)
    try:
        store.revoke(key_id)
    except KeyError as error:
        raise RefusedError(str(error.args[0])) from error
    say(f"key {key_id} is revoked")


def _store(config: Path | None) -> tuple[KeyStore, Path]:
    from serving.auth import KeyFileError, KeyStore

    path = settings_from(config).serving.keys_path
    try:
        return KeyStore(path), path
    except KeyFileError as error:
        raise MisuseError(str(error)) from error


def _limit(own: int | None) -> str:
    return "default" if own is None else str(own or "any")
