"""Telesales agents who judge a customer and never teach one: a held-out seller and one for validation.

They share neither rules nor words with the sellers of :mod:`training.counterparts.telesales_agents`, and not even
their course of a sale: those come down with time, the bundle seller moves only towards a bid, and the patient one
waits at its list price and then names one figure.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from negotiation.telesales import BODIES, FUELS, GRID, MINOR, OBJECTIONS, AgentView, Stock, Vehicle, offer
from training.counterparts.rules import FamilyRules, family_rules
from training.counterparts.telesales_agents import on_grid, own_offers, standing_bid


@dataclass(frozen=True)
class JudgingWording:
    """What a judging seller says; ``{vehicle}``, ``{price}`` and ``{concern}`` are filled in."""

    ask: Sequence[str]
    first: Sequence[str]
    again: Sequence[str]
    answer: Sequence[str]
    accept: Sequence[str]


BUNDLED = JudgingWording(
    ask=("Thanks for picking up! Tell me, what would your household drive?",),
    first=("Our package for you: {vehicle}, mats and first service, {price} all in.",),
    again=("Same package, fresh sum: {vehicle} for {price} all in.", "We meet you part of the way, {price} all in."),
    answer=("Yes, {concern} comes with the package.",),
    accept=("The package is yours, congratulations!",),
)
UNHURRIED = JudgingWording(
    ask=(
        "You have all the time that you need, so what would you like to have in the end?",
        "There is no need to be quick, so what is it that would be good for you?",
    ),
    first=("After all that I know of you by now, it would be the {vehicle}, at {price} with us.",),
    again=("All in all, and with time on your side, the {vehicle} is at {price} with us.",),
    answer=("You can leave the {concern} to us.",),
    accept=("It was good to take our time, so we have a deal.",),
)


@dataclass(frozen=True)
class Sale:
    """What a seller knows of the vehicle it is about to price. Prices in minor units."""

    vehicle: Vehicle
    floor: int
    named: tuple[int, ...]
    bid: int | None
    heard: int

    @property
    def margin(self) -> int:
        return self.vehicle.list_price - self.floor


class JudgingSeller(ABC):
    """Asks until it hears a need, answers every concern, then prices the vehicle by its family's rules."""

    role = Role.AGENT

    def __init__(self, name: str, wording: JudgingWording) -> None:
        self.name, self.family, self.wording = name, name, wording

    @property
    def rules(self) -> FamilyRules:
        return family_rules(proposal=type(self).figure, acceptance=type(self).sells_at, wording=self.wording)

    @abstractmethod
    def figure(self, sale: Sale) -> int:
        """The price to name, at or over the floor."""

    @abstractmethod
    def sells_at(self, sale: Sale, bid: int) -> bool:
        """Whether a bid at or over the floor is taken."""

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        stock = Stock.model_validate(context.public)
        heard = [turn.shown for turn in state.turns if turn.role is Role.COUNTERPART]
        vehicle = _wished(stock, heard)
        if vehicle is None:
            if state.turns_by(Role.AGENT) < 2:
                return rng.choice(self.wording.ask)
            # Nothing it understands has been said: the cheapest one keeps the talk going.
            vehicle = min(stock.vehicles, key=lambda one: one.list_price)
        answer = ""
        concern = next((word for word in OBJECTIONS if heard and word in heard[-1]), None)
        if concern is not None:
            answer = rng.choice(self.wording.answer).format(concern=concern) + " "
        floor = AgentView.model_validate(context.views[Role.AGENT]).floors[vehicle.id]
        on_table = standing_bid(state)
        bid = on_table[1] if on_table is not None and on_table[0] == vehicle.id else None
        named = tuple(price for vehicle_id, price in own_offers(state) if vehicle_id == vehicle.id)
        sale = Sale(vehicle, floor, named, bid, len(heard))
        if bid is not None and bid >= floor and self.sells_at(sale, bid):
            return f"{answer}{rng.choice(self.wording.accept)} [accept]"
        price = self.figure(sale)
        words = rng.choice(self.wording.again if named else self.wording.first)
        return f"{answer}{words.format(vehicle=vehicle.id, price=price // MINOR)} {offer(vehicle.id, price)}"


class BundleSeller(JudgingSeller):
    """Moves only towards a bid, half of the way each time; without one it drops a single notch and stays there."""

    def figure(self, sale: Sale) -> int:
        if not sale.named:
            return sale.vehicle.list_price
        if sale.bid is None:
            notch = sale.vehicle.list_price - 2 * GRID * MINOR
            return max(sale.floor, min(sale.named[-1], notch))
        return max(sale.floor, min(sale.named[-1], on_grid((sale.named[-1] + sale.bid) / 2)))

    def sells_at(self, sale: Sale, bid: int) -> bool:
        last = sale.named[-1] if sale.named else sale.vehicle.list_price
        return last - bid <= max(GRID * MINOR, 0.3 * sale.margin)


class PatientSeller(JudgingSeller):
    """Stays at the list price until it has been answered often, then names one figure near the floor for good."""

    patience = 4

    def figure(self, sale: Sale) -> int:
        if sale.heard < self.patience:
            return sale.vehicle.list_price
        return max(sale.floor, on_grid(sale.floor + 0.2 * sale.margin))

    def sells_at(self, sale: Sale, bid: int) -> bool:
        return bid >= sale.vehicle.list_price or (
            sale.heard >= self.patience and bid - sale.floor >= 0.1 * sale.margin
        )


def _wished(stock: Stock, heard: Sequence[str]) -> Vehicle | None:
    """The vehicle that suits the last words which name a body, its fuel too where one is named."""
    for text in reversed(heard):
        if not any(body in text for body in BODIES):
            continue
        suited = [vehicle for vehicle in stock.vehicles if vehicle.body in text]
        fuelled = [vehicle for vehicle in suited if vehicle.fuel in text or not any(f in text for f in FUELS)]
        if suited:
            return (fuelled or suited)[0]
    return None


HELD_OUT: tuple[JudgingSeller, ...] = (BundleSeller("bundle-seller", BUNDLED),)
VALIDATION: tuple[JudgingSeller, ...] = (PatientSeller("patient-seller", UNHURRIED),)
