"""``sparring demo``: the whole loop on this machine."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from sparring.commands.options import ConfigOption, say, settings_from
from sparring.errors import RefusedError


def demo(
    once: Annotated[bool, typer.Option("--once", help="Exit after the table instead of staying up.")] = False,
    customers: Annotated[int, typer.Option(min=4, help="Simulated customers before the round.")] = 240,
    at_once: Annotated[int, typer.Option(min=1, max=256, help="How many of them call at the same time.")] = 32,
    config: ConfigOption = None,
) -> None:
    """Serve customers, learn from them, gate, swap under traffic: the whole loop, on loopback, in one terminal."""
    from rich.console import Console

    from sparring.demo.drive import DemoPlan, run_demo
    from sparring.demo.processes import ChildFailed

    settings = settings_from(config)
    plan = DemoPlan(once=once, customers=customers, at_once=at_once, stream=4, config=config)
    try:
        ending = run_demo(settings, plan, Console())
    except ChildFailed as error:
        raise RefusedError(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError) as stopped:
        signal_name = "Ctrl-C" if isinstance(stopped, KeyboardInterrupt) else "SIGTERM"
        say(f"stopped by {signal_name}; run it again to go on from here")
        raise typer.Exit(130) from None
    if ending.during.failures:
        raise RefusedError(f"{ending.during.failures} requests failed while versions changed")
