"""``sparring keys``: API keys of tenants and operators."""

from __future__ import annotations

from typing import Annotated

import typer

from sparring.commands.options import ConfigOption, JsonOption, print_json, say, settings_from
from sparring.errors import MisuseError

app = typer.Typer(no_args_is_help=True, help="API keys. Only their hashes are kept.")


@app.command(epilog="Example: sparring keys create --tenant acme")
def create(
    tenant: Annotated[str, typer.Option(help="Whose conversations the key opens and sees.")],
    admin: Annotated[bool, typer.Option("--admin", help="A key for /admin/ instead of for conversations.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it once. A running service takes it at once."""
    from serving.auth import KeyStore

    settings = settings_from(config)
    path = settings.serving.keys_path
    try:
        key = KeyStore(path).create_key(tenant, "admin" if admin else "tenant")
    except ValueError as error:
        raise MisuseError(str(error)) from error
    if as_json:
        print_json({"tenant": tenant, "scope": "admin" if admin else "tenant", "key": key, "file": str(path)})
        return
    say(f"Kept its hash in {path}. The key itself is shown only now:")
    typer.echo(key)
