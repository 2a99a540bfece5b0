"""``sparring serve`` and ``sparring worker``: the two long-running processes."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from sparring.commands.options import ConfigOption, log_plainly, say, settings_from
from sparring.errors import MisuseError


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: as configured).")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="TCP port; 0 takes any free one.")] = None,
    config: ConfigOption = None,
) -> None:
    """Answer customers over HTTP until Ctrl-C; then finish what is running and stop."""
    from serving.server import AddressUnavailable, bind, log_json

    settings = settings_from(config, {"serving": {"host": host, "port": port}})
    # The port first: whoever mistyped it should not wait for a model to load.
    try:
        listener = bind(settings.serving.host, settings.serving.port)
    except AddressUnavailable as error:
        raise MisuseError(str(error)) from error
    log_json()
    if not settings.serving.keys_path.is_file():
        say("no API key exists yet, so every request will be refused: make one with `sparring keys create`")
    from serving.server import serve as serve_until_stopped
    from sparring.compose import application

    with listener, application(settings) as app:
        serve_until_stopped(
            app,
            settings.serving.host,
            settings.serving.port,
            listener=listener,
            shutdown_seconds=settings.serving.shutdown_seconds,
            trusted_proxies=settings.serving.trusted_proxies,
            on_ready=lambda url: say(f"serving at {url} (docs: {url}/docs)"),
        )


def worker(
    once: Annotated[bool, typer.Option("--once", help="Read the log, run at most one round, and exit.")] = False,
    config: ConfigOption = None,
) -> None:
    """Turn events into a dataset, and run a round when enough conversations are new. Until Ctrl-C."""
    from sparring.compose import run_worker

    settings = settings_from(config)
    log_plainly()
    rounds = run_worker(settings, threading.Event(), once=once)
    say(f"{rounds} rounds finished")
