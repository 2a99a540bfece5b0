"""Scripted telesales agents: the teachers of the warm start and the counterpart's training partners.

They are ordinary sellers, not experts, on purpose: some pitch before they ask, pass over an objection or hold
their price too long. A model that imitates the mixture succeeds in about half of its calls, which leaves room
to learn. The held-out agent here asks, bargains and speaks by other rules; further sellers who judge and never
teach are in :mod:`training.counterparts.judging_sellers`.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from negotiation.telesales import BODIES, FUELS, GRID, MINOR, OBJECTIONS, AgentView, Stock, Vehicle, offer, read_offer
from training.counterparts.negotiator import temper
from training.counterparts.rules import FamilyRules, family_rules


@dataclass(frozen=True)
class SellerWording:
    """What a seller says. ``{vehicle}``, ``{price}`` and ``{concern}`` are filled in."""

    ask: Sequence[str]
    pitch: Sequence[str]
    lower: Sequence[str]
    hold: Sequence[str]
    answer: Sequence[str]
    accept: Sequence[str]


PLAIN = SellerWording(
    ask=("Hello, what vehicle do you need?", "Hello, what are you looking for?"),
    pitch=("I have the {vehicle} {price} here.", "There is the {vehicle} {price} for you."),
    lower=("I can do the {vehicle} {price}.", "For you the {vehicle} {price}."),
    hold=("It stays the {vehicle} {price}.", "It is worth it, the {vehicle} {price}."),
    answer=("The {concern} is included.", "The {concern} is no problem."),
    accept=("Agreed.", "Done, it is yours."),
)
BRISK = SellerWording(
    ask=("Good morning, which kind shall it be?",),
    pitch=("May I suggest this {vehicle} at {price}?",),
    lower=("Let me sharpen that: {price}.",),
    hold=("{price} stands.",),
    answer=("We take care of {concern}.",),
    accept=("Perfect, that works.",),
)


@dataclass(frozen=True)
class SellerStyle:
    """Habits as probabilities, and how many steps from list price to floor."""

    asks_first: float
    listens: float
    answers: float
    steps: tuple[int, int]


class ScriptedSeller(ABC):
    """The shared course of a sale: find the need, pitch, come down, never under the floor; families fill in how."""

    role = Role.AGENT

    def __init__(self, name: str, family: str, wording: SellerWording, style: SellerStyle) -> None:
        self.name, self.family, self.wording, self.style = name, family, wording, style

    @property
    def rules(self) -> FamilyRules:
        return family_rules(proposal=type(self).price, acceptance=type(self).takes, wording=self.wording)

    @abstractmethod
    def price(self, list_price: int, floor: int, offered: int, steps: int) -> int:
        """The price to name after ``offered`` offers of the vehicle, in minor units."""

    @abstractmethod
    def takes(self, bid: int, price: int, list_price: int, floor: int) -> bool:
        """Whether a bid at or over the floor is taken, where ``price`` is what the seller would name else."""

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        stock = Stock.model_validate(context.public)
        floors = AgentView.model_validate(context.views[Role.AGENT]).floors
        traits = temper(self.name, context, self.role)
        asks_first = traits.random() < self.style.asks_first
        steps = traits.randint(*self.style.steps)
        heard = [turn.shown for turn in state.turns if turn.role is Role.COUNTERPART]
        last = heard[-1] if heard else ""
        asked = any("?" in t.text and t.move is None for t in state.turns if t.role is Role.AGENT)

        if not any(body in text for text in heard for body in BODIES) and asks_first and not asked:
            return rng.choice(self.wording.ask)
        vehicle, refused = self._choose(stock, state, heard, rng)
        offers = [price for vehicle_id, price in own_offers(state) if vehicle_id == vehicle.id]
        answer = ""
        concern = next((word for word in OBJECTIONS if word in last), None)
        if concern and rng.random() < self.style.answers:
            answer = rng.choice(self.wording.answer).format(concern=concern) + " "
        price = self.price(vehicle.list_price, floors[vehicle.id], len(offers), steps)
        bid = standing_bid(state)
        floor = floors[vehicle.id]
        if bid and bid[0] == vehicle.id and bid[1] >= floor and self.takes(bid[1], price, vehicle.list_price, floor):
            return answer + rng.choice(self.wording.accept) + " [accept]"
        if not offers or refused:
            lines = self.wording.pitch
        else:
            lines = self.wording.lower if price < offers[-1] else self.wording.hold
        words = rng.choice(lines).format(vehicle=vehicle.id, price=price // MINOR)
        return f"{answer}{words} {offer(vehicle.id, price)}"

    def _choose(
        self, stock: Stock, state: NegotiationState, heard: list[str], rng: random.Random
    ) -> tuple[Vehicle, bool]:
        """The vehicle to talk about, and whether it is another than the last one."""
        offers = own_offers(state)
        previous = stock.find(offers[-1][0]) if offers else None
        wishes = [text for text in heard if any(body in text for body in BODIES)]
        if wishes:
            suited = [v for v in stock.vehicles if v.body in wishes[-1]]
            suited = [v for v in suited if v.fuel in wishes[-1] or not any(f in wishes[-1] for f in FUELS)] or suited
            if suited and (previous in suited or rng.random() < self.style.listens):
                return suited[0], previous is not None and previous != suited[0]
        if previous is not None and rng.random() < 0.5:
            return previous, False
        vehicle = rng.choice(stock.vehicles)
        return vehicle, previous is not None and previous != vehicle


class CurveSeller(ScriptedSeller):
    """Comes down along a curve: ``power`` under 1 gives way early, over 1 late."""

    def __init__(
        self, name: str, wording: SellerWording, style: SellerStyle, *, power: float, takes_bid_at: float
    ) -> None:
        super().__init__(name, name, wording, style)
        self.power, self.takes_bid_at = power, takes_bid_at

    def price(self, list_price: int, floor: int, offered: int, steps: int) -> int:
        share = min(1.0, offered / steps) ** self.power
        return max(floor, on_grid(list_price - share * (list_price - floor)))

    def takes(self, bid: int, price: int, list_price: int, floor: int) -> bool:
        return bid >= price or bid >= floor + self.takes_bid_at * (list_price - floor)


class EqualStepSeller(ScriptedSeller):
    """Comes down by the same amount each time, and takes any bid that leaves a quarter of the margin."""

    def price(self, list_price: int, floor: int, offered: int, steps: int) -> int:
        return max(floor, on_grid(list_price - min(1.0, offered / steps) * (list_price - floor)))

    def takes(self, bid: int, price: int, list_price: int, floor: int) -> bool:
        return bid >= price or bid - floor >= (list_price - floor) / 4


def on_grid(price: float) -> int:
    """A price in minor units, put down to the grid."""
    unit = GRID * MINOR
    return int(price // unit) * unit


def own_offers(state: NegotiationState) -> list[tuple[str, int]]:
    """The seller's own offers so far: vehicle id and price in minor units."""
    moves = (turn.move for turn in state.turns if turn.role is Role.AGENT)
    return [read_offer(move) for move in moves if move is not None and move.kind == "offer"]


def standing_bid(state: NegotiationState) -> tuple[str, int] | None:
    """The customer's bid on the table: vehicle id and price in minor units."""
    if state.standing is None or state.standing_by is not Role.COUNTERPART:
        return None
    return read_offer(state.standing)


TRAINING: tuple[ScriptedSeller, ...] = (
    CurveSeller("easy-seller", PLAIN, SellerStyle(0.6, 0.75, 0.4, steps=(1, 4)), power=0.8, takes_bid_at=0.0),
    CurveSeller("firm-seller", PLAIN, SellerStyle(0.7, 0.8, 0.4, steps=(4, 7)), power=1.5, takes_bid_at=0.5),
)
HELD_OUT: tuple[ScriptedSeller, ...] = (
    EqualStepSeller("brisk-seller", "brisk-seller", BRISK, SellerStyle(0.9, 0.95, 0.95, steps=(2, 3))),
)
