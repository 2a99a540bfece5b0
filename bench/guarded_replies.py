"""How often does the guard catch the model's own words, and which? Dialogues with every scripted counterpart.

Each message is judged as the service would judge it (``Scenario.overstep``), in dialogues played without the guard:
the model's own habits are what counts. Whether a caught message was honest is for a reader to say: they
are all printed. Left out on purpose: whether the second try is better.

Run: ``python -P bench/guarded_replies.py --dialogues 120`` (about ten seconds on one core; ``-P`` because
a file beside it has the name of a package).
"""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console

from negotiation.catalogue import NAMES, scenario_named
from negotiation.generation import BASE, Sampling
from negotiation.roles import Role
from sparring.compose import open_engine
from sparring.models import resolve_base_model
from sparring.settings import Settings, load_settings
from training.counterparts import deal_negotiators, telesales_adversaries, telesales_customers
from training.counterparts.negotiator import Negotiator
from training.joint_rollout import Dialogue, ModelPlayer, ScriptedPlayer, Table, play

FIRST_SEED = 5000
DEALERS = (*deal_negotiators.TRAINING, *deal_negotiators.HELD_OUT)
COUNTERPARTS: dict[str, tuple[Negotiator, ...]] = {
    "telesales": (
        *telesales_customers.TRAINING,
        *telesales_customers.HELD_OUT,
        *telesales_adversaries.CUSTOMERS,
    ),
    "deal-or-no-deal": tuple(one for one in DEALERS if one.role is Role.COUNTERPART),
}

app = typer.Typer(add_completion=False)


@app.command()
def main(
    dialogues: Annotated[int, typer.Option(help="Dialogues of each scenario.", min=1)] = 120,
    adapter: Annotated[str, typer.Option(help="Who plays the agent; by default the base model.")] = BASE,
) -> None:
    """Print each caught message with the reason, and the share of messages caught."""
    settings: Settings = load_settings(None)
    console = Console(width=118)
    engine = open_engine(settings, resolve_base_model(settings.base_model))
    try:
        for name in NAMES:
            scenario, players = scenario_named(name), COUNTERPARTS[name]
            tables = [
                Table(
                    scenario.generate(FIRST_SEED + number),
                    {
                        Role.AGENT: ModelPlayer(adapter),
                        Role.COUNTERPART: ScriptedPlayer(players[number % len(players)]),
                    },
                    seed=number,
                )
                for number in range(dialogues)
            ]
            played = play(engine, scenario, tables, Sampling(max_tokens=settings.serving.max_tokens)).dialogues
            messages, caught, started = 0, 0, time.perf_counter()
            for one in played:
                for text, why in judged(one):
                    messages += 1
                    if why is not None:
                        caught += 1
                        console.print(f"  {text!r}: {why}", markup=False, highlight=False)
            each = 1000 * (time.perf_counter() - started) / messages
            console.print(f"{name}: {caught} of {messages} messages caught, {each:.2f} ms to judge one")
    finally:
        engine.close()


def judged(dialogue: Dialogue) -> list[tuple[str, str | None]]:
    """The agent's messages, and why each may not be shown."""
    context = dialogue.context
    scenario = scenario_named(context.scenario)
    state, found = scenario.begin(context), []
    for turn in dialogue.state.turns:
        if turn.role is Role.AGENT:
            found.append((turn.text, scenario.overstep(context, state, turn.text)))
        state = scenario.advance(context, state, turn.role, turn.text)
    return found


if __name__ == "__main__":
    app()
