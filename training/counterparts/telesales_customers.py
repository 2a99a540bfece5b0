"""Scripted customers of vehicle telesales.

Three training families (a conceder, a boulware haggler and an anchor, the same wording pool) and four held-out
families with other proposal rules, other acceptance rules and other words: a mirror, a silent one, a bracketing
haggler and a deadline player. The warm start meets easier customers of the training families, who name all that they
would pay: what they cannot teach is left to learn. All keep to their budget; what differs is what it takes to make
them say yes.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from negotiation.telesales import GRID, MINOR, CustomerView, Stock, Vehicle, offer, read_offer
from training.counterparts.negotiator import temper
from training.counterparts.rules import FamilyRules, family_rules


@dataclass(frozen=True)
class Wording:
    """What a family says; ``{need}``, ``{a_need}`` (with article), ``{concern}`` and ``{price}`` are filled in."""

    greet: Sequence[str]
    need: Sequence[str]
    unsuitable: Sequence[str]
    ask_concern: Sequence[str]
    expensive: Sequence[str]
    bid: Sequence[str]
    accept: Sequence[str]
    quit: Sequence[str]


PLAIN = Wording(
    greet=("Hello, who is calling?", "Yes, hello?"),
    need=("I need {a_need}.", "I am looking for {a_need}.", "The {need}, please."),
    unsuitable=("That does not suit me, I need {a_need}.", "No, I am looking for {a_need}."),
    ask_concern=("What about the {concern}?", "And what is the {concern}?"),
    expensive=("That is too much for me.", "That is over what I can pay."),
    bid=("I could pay {price}.", "Too much. I offer {price}."),
    accept=("Good, I take it.", "Deal."),
    quit=("This leads nowhere. Goodbye.", "No, thank you. Goodbye."),
)
FORMAL = Wording(
    greet=("Good day.",),
    need=("Only {a_need} interests me.", "It has to be {a_need}."),
    unsuitable=("Not that one. It has to be {a_need}.",),
    ask_concern=("First tell me about {concern}.",),
    expensive=("Come down a little more.", "You will have to do better."),
    bid=("My figure is {price}.", "Let us say {price}."),
    accept=("Very well, agreed.",),
    quit=("We shall not come together.",),
)
TERSE = Wording(
    greet=("Yes?",),
    need=("{need}.",),
    unsuitable=("No. {need}.",),
    ask_concern=("{concern}?",),
    expensive=("No.", "Less."),
    bid=("{price}.",),
    accept=("Okay.",),
    quit=("Bye.",),
)
CHATTY = Wording(
    greet=("Oh hi, nice that you ring, I was just having coffee.",),
    need=("Well, you know, my family keeps telling me that we want {a_need} now.",),
    unsuitable=("Nice thing, really, but my family would rather see {a_need} at the door.",),
    ask_concern=("Before I forget, my brother said to ask how it is with {concern}.",),
    expensive=("Oh dear, my wallet just cried a bit.",),
    bid=("How about we meet at {price} and both go home happy?",),
    accept=("Wonderful, let us do that then.",),
    quit=("Oh well, my coffee is cold now, maybe some other time.",),
)


@dataclass(frozen=True)
class Bargain:
    """What a customer knows when it must speak. Prices in major units.

    ``acceptable`` is False while the customer's own bid is on the table instead of the agent's price.
    """

    view: CustomerView
    budget: int
    asks: tuple[int, ...]
    bids: tuple[int, ...]
    ask: int | None
    acceptable: bool
    vehicle: Vehicle | None
    agent_turns: int

    @property
    def last_bid(self) -> int | None:
        return self.bids[-1] if self.bids else None


class ScriptedCustomer(ABC):
    """The shared course of a call; families fill in acceptance and proposal."""

    role = Role.COUNTERPART

    def __init__(self, name: str, family: str, wording: Wording) -> None:
        self.name, self.family, self.wording = name, family, wording

    @property
    def rules(self) -> FamilyRules:
        return family_rules(proposal=type(self).bid, acceptance=type(self).accepts, wording=self.wording)

    @abstractmethod
    def accepts(self, bargain: Bargain, traits: random.Random) -> bool:
        """Whether the suitable vehicle on the table is taken at its price, already known within budget."""

    @abstractmethod
    def bid(self, bargain: Bargain, traits: random.Random) -> int | None:
        """The price to propose in major units, or None to only complain."""

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        view = CustomerView.model_validate(context.views[Role.COUNTERPART])
        stock = Stock.model_validate(context.public)
        bargain = read_bargain(view, stock, state)
        traits = temper(self.name, context, self.role)
        heard = [turn.shown for turn in state.turns if turn.role is Role.AGENT]
        said = " ".join(turn.text for turn in state.turns if turn.role is Role.COUNTERPART)
        need = f"{view.fuel} {view.body}" if view.fuel else view.body

        def say(lines: Sequence[str], price: int = 0) -> str:
            return rng.choice(lines).format(need=need, a_need=with_article(need), concern=view.objection, price=price)

        if not heard:
            tells = traits.random() < 0.4
            return say(self.wording.greet) + (" " + say(self.wording.need) if tells else "")
        unanswered = view.objection is not None and not any(view.objection in text for text in heard)
        asked = view.objection is not None and view.objection in said
        lost_patience = bargain.agent_turns >= view.patience + (0 if not (asked and unanswered) else -1)
        if bargain.vehicle is None or bargain.ask is None:
            return say(self.wording.quit) + " [quit]" if lost_patience else say(self.wording.need)
        if not view.met_by(bargain.vehicle):
            return say(self.wording.quit) + " [quit]" if lost_patience else say(self.wording.unsuitable)
        if bargain.acceptable and bargain.ask <= bargain.budget and self.accepts(bargain, traits):
            if not unanswered:
                return say(self.wording.accept) + " [accept]"
            if not lost_patience:
                return say(self.wording.ask_concern)
        if lost_patience:
            return say(self.wording.quit) + " [quit]"
        if unanswered and not asked and traits.random() < 0.5:
            return say(self.wording.ask_concern)
        price = self.bid(bargain, traits)
        if price is None or price >= bargain.ask:
            return say(self.wording.expensive)
        return f"{say(self.wording.bid, price)} {offer(bargain.vehicle.id, price * MINOR)}"


class CurveCustomer(ScriptedCustomer):
    """Pays along a curve of time: low at first, the whole budget when patience runs out.

    ``power`` under 1 concedes early (conceder), over 1 late (boulware). ``bids`` is the share of its limit that it
    names, from and to: a customer who names all of it can be waited out.
    """

    def __init__(
        self, name: str, family: str, wording: Wording, *, power: float, bids: tuple[float, float] = (0.88, 0.98)
    ) -> None:
        super().__init__(name, family, wording)
        self.power, self.bids = power, bids

    def _limit(self, bargain: Bargain, traits: random.Random) -> float:
        start = traits.uniform(0.80, 0.92)
        elapsed = min(1.0, bargain.agent_turns / max(1, bargain.view.patience - 1))
        return bargain.budget * (start + (1 - start) * elapsed**self.power)

    def accepts(self, bargain: Bargain, traits: random.Random) -> bool:
        return bargain.ask is not None and bargain.ask <= self._limit(bargain, traits)

    def bid(self, bargain: Bargain, traits: random.Random) -> int | None:
        limit = self._limit(bargain, traits)
        return None if traits.random() < 0.3 else int(traits.uniform(*self.bids) * limit // GRID) * GRID


class AnchorCustomer(ScriptedCustomer):
    """Names one low figure and then only complains; what it would pay changes from turn to turn."""

    def accepts(self, bargain: Bargain, traits: random.Random) -> bool:
        limits = [traits.uniform(0.86, 1.0) for _ in range(bargain.agent_turns + 1)]
        return bargain.ask is not None and bargain.ask <= limits[-1] * bargain.budget

    def bid(self, bargain: Bargain, traits: random.Random) -> int | None:
        return None if bargain.bids else int(traits.uniform(0.65, 0.85) * bargain.budget // GRID) * GRID


class MirrorCustomer(ScriptedCustomer):
    """Tit for tat: gives way only as far as the agent has come down, and takes any price that it met half-way."""

    def accepts(self, bargain: Bargain, traits: random.Random) -> bool:
        assert bargain.ask is not None
        conceded = max(bargain.asks) - bargain.ask
        return conceded >= 2 * GRID or bargain.ask <= 0.94 * bargain.budget

    def bid(self, bargain: Bargain, traits: random.Random) -> int | None:
        assert bargain.ask is not None
        conceded = max(bargain.asks) - bargain.ask
        return min(bargain.budget, int((0.82 * bargain.budget + conceded) // GRID) * GRID)


class SilentCustomer(ScriptedCustomer):
    """Never names a price, and has one fixed limit a little under the budget."""

    def accepts(self, bargain: Bargain, traits: random.Random) -> bool:
        return bargain.ask is not None and bargain.ask <= traits.uniform(0.95, 1.0) * bargain.budget

    def bid(self, bargain: Bargain, traits: random.Random) -> int | None:
        return None


class BracketingCustomer(ScriptedCustomer):
    """Splits the difference between its last bid and the asking price; takes what is near its own figure."""

    def _figure(self, bargain: Bargain) -> int:
        assert bargain.ask is not None
        low = bargain.last_bid if bargain.last_bid is not None else int(0.75 * bargain.budget)
        return min(bargain.budget, int((low + bargain.ask) / 2 // GRID) * GRID)

    def accepts(self, bargain: Bargain, traits: random.Random) -> bool:
        assert bargain.ask is not None
        return bargain.ask - self._figure(bargain) <= 0.05 * bargain.budget

    def bid(self, bargain: Bargain, traits: random.Random) -> int | None:
        return self._figure(bargain)


class DeadlineCustomer(ScriptedCustomer):
    """Says no to everything until its patience is nearly gone, then takes anything within the budget."""

    def accepts(self, bargain: Bargain, traits: random.Random) -> bool:
        return bargain.agent_turns >= bargain.view.patience - 2

    def bid(self, bargain: Bargain, traits: random.Random) -> int | None:
        return None if bargain.agent_turns % 2 else int(0.7 * bargain.budget // GRID) * GRID


def read_bargain(view: CustomerView, stock: Stock, state: NegotiationState) -> Bargain:
    """What the turns so far say about the vehicle last offered, its prices and the customer's own bids."""
    asks: list[int] = []
    bids: list[int] = []
    vehicle = None
    for turn in state.turns:
        if turn.move is None or turn.move.kind != "offer":
            continue
        vehicle_id, price = read_offer(turn.move)
        if turn.role is Role.AGENT:
            found = stock.find(vehicle_id)
            if vehicle is None or found is None or found.id != vehicle.id:
                asks.clear()
            vehicle = found
            asks.append(price // MINOR)
        else:
            bids.append(price // MINOR)
    return Bargain(
        view=view,
        budget=view.budget // MINOR,
        asks=tuple(asks),
        bids=tuple(bids),
        ask=asks[-1] if asks else None,
        acceptable=state.standing_by is Role.AGENT,
        vehicle=vehicle,
        agent_turns=state.turns_by(Role.AGENT),
    )


def with_article(noun: str) -> str:
    """``an estate``, ``a van``."""
    # "suv" is spelled out, so it begins with a vowel's sound too.
    return f"an {noun}" if noun.startswith(("e", "suv")) else f"a {noun}"


_ANCHOR = AnchorCustomer("anchor", "anchor", PLAIN)
WARM_START: tuple[ScriptedCustomer, ...] = (
    CurveCustomer("conceder", "conceder", PLAIN, power=0.6, bids=(1.0, 1.0)),
    CurveCustomer("boulware", "boulware", PLAIN, power=2.5, bids=(1.0, 1.0)),
    _ANCHOR,
)
TRAINING: tuple[ScriptedCustomer, ...] = (
    CurveCustomer("conceder", "conceder", PLAIN, power=0.6),
    CurveCustomer("boulware", "boulware", PLAIN, power=2.5),
    _ANCHOR,
)
HELD_OUT: tuple[ScriptedCustomer, ...] = (
    MirrorCustomer("mirror", "mirror", FORMAL),
    SilentCustomer("silent", "silent", TERSE),
    BracketingCustomer("bracketing", "bracketing", CHATTY),
    DeadlineCustomer("deadline", "deadline", FORMAL),
)
