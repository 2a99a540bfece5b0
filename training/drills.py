"""Short question-and-answer drills about a role's own prompt.

A small model first has to learn to look things up: the price that stands beside the vehicle asked for, the rest
of a split. In dialogues such look-ups are a small part of the tokens; in a drill they are most of them. Used in
the first part of the warm start only, on contexts that the dialogues do not use.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from negotiation.catalogue import NAMES, scenario_named
from negotiation.deal_or_no_deal import DealOrNoDeal, Pool, remainder, splits
from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import Context
from negotiation.telesales import BODIES, FUELS, GRID, MINOR, AgentView, CustomerView, Stock, offer
from training.counterparts.deal_negotiators import in_words

_QUESTIONS = 6


@dataclass(frozen=True)
class Drill:
    """A system prompt with questions and the answers to learn."""

    system_prompt: str
    exchanges: tuple[tuple[str, str], ...]


def drill(seed: int) -> Drill:
    """The drill of a seed: mostly the agent's look-ups, which are the harder ones."""
    rng = random.Random(f"drill:{seed}")
    scenario = scenario_named(rng.choice(NAMES))
    context = scenario.generate(90_000_000 + seed)
    role = Role.AGENT if rng.random() < 0.75 else Role.COUNTERPART
    if scenario.name == DealOrNoDeal.name:
        exchanges = _splits(context, rng)
    elif role is Role.AGENT:
        exchanges = _stock(context, rng)
    else:
        exchanges = _needs(context, rng)
    rng.shuffle(exchanges)
    return Drill(scenario.system_prompt(role, context), tuple(exchanges[:_QUESTIONS]))


def _stock(context: Context, rng: random.Random) -> list[tuple[str, str]]:
    floors = AgentView.model_validate(context.views[Role.AGENT]).floors
    exchanges = []
    for vehicle in Stock.model_validate(context.public).vehicles:
        need = rng.choice((vehicle.body, f"{vehicle.fuel} {vehicle.body}"))
        name, floor = vehicle.described, floors[vehicle.id]
        listed = vehicle.list_price // MINOR
        exchanges += [
            (
                rng.choice(("I need a {}.", "A {}, please.", "{}?")).format(need),
                f"I have a {name} {listed} here. {offer(vehicle.id, vehicle.list_price)}",
            ),
            (f"What of the {vehicle.body}?", f"{name} {listed} floor {floor // MINOR}"),
            (f"Too much, the {vehicle.body}.", f"For you the {name} {floor // MINOR}. {offer(vehicle.id, floor)}"),
        ]
    return exchanges


def _needs(context: Context, rng: random.Random) -> list[tuple[str, str]]:
    customer = CustomerView.model_validate(context.views[Role.COUNTERPART])
    need = f"{customer.fuel} {customer.body}" if customer.fuel else customer.body
    exchanges = []
    for _ in range(_QUESTIONS):
        body, price = rng.choice(BODIES), rng.randrange(25, 89) * GRID * MINOR
        pitch = f"I have a {rng.choice(FUELS)} {body} {price // MINOR} here. {offer(body, price)}"
        exchanges.append((pitch, f"I need a {need}. {offer(customer.body, customer.budget)}"))
    return exchanges


def _splits(context: Context, rng: random.Random) -> list[tuple[str, str]]:
    counts = Pool.model_validate(context.public).counts
    exchanges = []
    for _ in range(_QUESTIONS):
        share = rng.choice(list(splits(counts)))
        rest = remainder(counts, share)
        asked = Move(kind="propose", arguments=tuple(map(str, share)))
        left = Move(kind="select", arguments=tuple(map(str, rest)))
        exchanges.append((f"I would like {in_words(share)}. {asked}", f"{in_words(rest)}. {left}"))
    return exchanges
