"""Short question-and-answer drills about a role's own prompt.

A small model first has to learn to look things up: the price that stands beside the vehicle asked for, the rest
of a split. In dialogues such look-ups are a small part of the tokens; in a drill they are most of them. Used in
the first part of the warm start only, on contexts that the dialogues do not use.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from negotiation.catalogue import NAMES, scenario_named
from negotiation.deal_or_no_deal import OFFERED, DealOrNoDeal, Pool, remainder, splits
from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import Context
from negotiation.telesales import BODIES, GRID, MINOR, OBJECTIONS, AgentView, CustomerView, Stock, offer
from training.counterparts.deal_negotiators import in_words
from training.wording import strange

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


def _perhaps_strange(question: str, rng: random.Random) -> str:
    return strange(question, rng) if rng.random() < 0.5 else question


def _stock(context: Context, rng: random.Random) -> list[tuple[str, str]]:
    floors = AgentView.model_validate(context.views[Role.AGENT]).floors
    exchanges = []
    for vehicle in Stock.model_validate(context.public).vehicles:
        need = rng.choice((vehicle.body, f"{vehicle.fuel} {vehicle.body}"))
        name, floor = vehicle.id, floors[vehicle.id]
        listed = vehicle.list_price // MINOR
        exchanges += [
            (
                _perhaps_strange(rng.choice(("I need the {}.", "The {}, please.", "{}.")).format(need), rng),
                f"I have the {name} {listed} here. {offer(vehicle.id, vehicle.list_price)}",
            ),
            (f"What of the {vehicle.body}?", f"Listed: {name} {listed}. Floors: {name} {floor // MINOR}."),
            (f"Too much, the {vehicle.body}.", f"For you the {name} {floor // MINOR}. {offer(vehicle.id, floor)}"),
        ]
        concern = rng.choice(OBJECTIONS)
        answer = rng.choice((f"The {concern} is included.", f"The {concern} is no problem."))
        asked = _perhaps_strange(f"What about the {concern}?", rng)
        exchanges.append((asked, f"{answer} For you the {name} {floor // MINOR}."))
    return exchanges


def _needs(context: Context, rng: random.Random) -> list[tuple[str, str]]:
    customer = CustomerView.model_validate(context.views[Role.COUNTERPART])
    need = f"{customer.fuel} {customer.body}" if customer.fuel else customer.body
    exchanges = []
    for _ in range(_QUESTIONS):
        body, price = rng.choice(BODIES), rng.randrange(25, 89) * GRID * MINOR
        pitch = f"I have the {body} {price // MINOR} here. {offer(body, price)}"
        answer = f"I need the {need}. {offer(customer.body, customer.budget)}"
        exchanges.append((_perhaps_strange(pitch, rng), answer))
    return exchanges


def _splits(context: Context, rng: random.Random) -> list[tuple[str, str]]:
    counts = Pool.model_validate(context.public).counts
    exchanges = []
    for _ in range(_QUESTIONS):
        share = rng.choice(list(splits(counts)))
        rest = remainder(counts, share)
        offered = Move(kind=OFFERED, arguments=tuple(map(str, rest)))
        left = Move(kind="select", arguments=tuple(map(str, rest)))
        asked = _perhaps_strange(f"I would like {in_words(share)}. {offered}", rng)
        exchanges.append((asked, f"{in_words(rest)}. {left}"))
    return exchanges
