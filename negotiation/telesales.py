"""Vehicle telesales: the agent calls a customer about a vehicle.

Public: the stock (vehicle id, body, fuel, list price). Private to the agent: the lowest price per vehicle it
may agree to (its authority floor). Private to the customer: the body and fuel it needs, a budget, an
objection that it wants answered, and its patience in turns.

Success@1: this first call ends in a structured agreement on a vehicle that meets the needs, at a price at or
under the budget and at or over the floor. Rewards, separate per role:

* agent: 0.8 + 0.2 x (price - floor) / (list - floor) on success, else 0; less 0.1 for each offer beyond its
  authority (it was blocked, and the customer heard a safe reply instead);
* customer: clip(4 x (budget - price) / budget, -1, 1) for a vehicle that meets the needs, -1 for one that does
  not, -0.1 for no deal (the call cost time and the need remains).

Money is in integer minor units; messages write whole major units, on a grid of 250.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from negotiation.authority import SAFE_REPLY, AuthorityLimits, Stake
from negotiation.moves import Move, parse_message
from negotiation.price_talk import Item, PriceTalk
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, NegotiationState, Outcome, ScenarioError, read_model
from negotiation.table import require_turn, spoken_words, take_turn

MINOR = 100
GRID = 250
BODIES = ("hatchback", "estate", "suv", "van", "coupe")
FUELS = ("petrol", "diesel", "electric")
BLOCKED_COST = 0.1
OBJECTIONS = ("warranty", "mileage", "delivery", "finance")


class Vehicle(BaseModel):
    """One vehicle of the stock. ``list_price`` in minor units."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str
    body: str
    fuel: str
    list_price: int = Field(gt=0)

    @property
    def line(self) -> str:
        """Its line in the agent's prompt. The price stands right behind the id, so that a small model finds it."""
        features = self.fuel if self.id == self.body else f"{self.fuel} {self.body}"
        return f"{self.id} {self.list_price // MINOR} {features}"


class Stock(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    vehicles: tuple[Vehicle, ...] = Field(min_length=1, max_length=9)

    def find(self, vehicle_id: str) -> Vehicle | None:
        return next((vehicle for vehicle in self.vehicles if vehicle.id == vehicle_id), None)


class AgentView(BaseModel):
    """``floors``: vehicle id to the lowest authorised price, minor units."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    floors: dict[str, int]


class CustomerView(BaseModel):
    """``budget`` in minor units; ``patience``: agent turns without a deal that the customer will bear."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    body: str
    fuel: str | None = None
    budget: int = Field(gt=0)
    objection: str | None = None
    patience: int = Field(ge=2, le=8)

    def met_by(self, vehicle: Vehicle) -> bool:
        return vehicle.body == self.body and (self.fuel is None or vehicle.fuel == self.fuel)


def offer(vehicle_id: str, price: int) -> Move:
    """The offer of a vehicle at a price in minor units."""
    return Move(kind="offer", arguments=(vehicle_id, str(price // MINOR)))


def read_offer(move: Move) -> tuple[str, int]:
    """Vehicle id and price (minor units) of an offer. Raises ValueError for anything else."""
    if move.kind != "offer" or len(move.arguments) != 2 or not move.arguments[1].isascii():
        raise ValueError(f"{move} is not an offer of the form [offer VEHICLE PRICE]")
    vehicle_id, price = move.arguments
    if not price.isdigit() or not 0 < int(price) < 10_000_000:
        raise ValueError(f"price {price!r} in {move} is not a whole number between 1 and 9999999")
    return vehicle_id, int(price) * MINOR


class VehicleTelesales:
    """The scenario; stateless."""

    name: ClassVar[str] = "telesales"
    title: ClassVar[str] = "Buy a vehicle"
    about: ClassVar[str] = (
        "A seller is on the line. You know what you need and what you can spend: get the right vehicle for less."
    )
    max_turns: ClassVar[int] = 16

    def generate(self, seed: int) -> Context:
        rng = random.Random(f"telesales:{seed}")
        bodies = rng.sample(BODIES, 3)
        vehicles, floors = [], {}
        for body in bodies:
            list_price = rng.randrange(32, 89) * GRID
            floor = _grid(list_price * rng.uniform(0.80, 0.92))
            vehicles.append(Vehicle(id=body, body=body, fuel=rng.choice(FUELS), list_price=list_price * MINOR))
            floors[body] = floor * MINOR
        context = Context(
            scenario=self.name,
            seed=seed,
            first_speaker=Role.AGENT if rng.random() < 0.5 else Role.COUNTERPART,
            public=Stock(vehicles=tuple(vehicles)).model_dump(mode="json"),
            views={Role.AGENT: AgentView(floors=floors).model_dump(mode="json")},
        )
        return self.complete(context, seed)

    def complete(self, context: Context, seed: int) -> Context:
        """Draw a customer for a known stock, with room for a deal: its budget is at or over a floor."""
        rng = random.Random(f"telesales customer:{seed}")
        stock, agent = self._stock(context), self._agent_view(context)
        wanted = rng.choice(stock.vehicles)
        floor, list_price = agent.floors[wanted.id], wanted.list_price
        budget = _grid((floor + rng.uniform(0.05, 1.1) * (list_price - floor)) / MINOR, up=True) * MINOR
        customer = CustomerView(
            body=wanted.body,
            fuel=wanted.fuel if rng.random() < 0.5 else None,
            budget=budget,
            objection=rng.choice(OBJECTIONS) if rng.random() < 0.6 else None,
            patience=rng.randint(4, 7),
        )
        views = {**context.views, Role.COUNTERPART: customer.model_dump(mode="json")}
        return context.model_copy(update={"views": views})

    def validate(self, context: Context) -> None:
        stock, agent = self._stock(context), self._agent_view(context)
        ids = [vehicle.id for vehicle in stock.vehicles]
        if len(set(ids)) != len(ids):
            raise ScenarioError(f"vehicle ids {ids} repeat: give each vehicle its own id")
        for vehicle in stock.vehicles:
            if not vehicle.id.isalnum() or len(vehicle.id) > 16:
                raise ScenarioError(f"vehicle id {vehicle.id!r} must be 1 to 16 letters and digits")
            if vehicle.id not in agent.floors:
                raise ScenarioError(f"vehicle {vehicle.id!r} has no authority floor: add it to floors")
            if not 0 < agent.floors[vehicle.id] <= vehicle.list_price:
                raise ScenarioError(
                    f"floor {agent.floors[vehicle.id]} of vehicle {vehicle.id!r} must be over 0 and at most its "
                    f"list price {vehicle.list_price}"
                )
        if extra := set(agent.floors) - set(ids):
            raise ScenarioError(f"floors name vehicles that are not in the stock: {sorted(extra)}")
        if Role.COUNTERPART in context.views:
            self._customer_view(context)

    def system_prompt(self, role: Role, context: Context) -> str:
        stock = self._stock(context)
        if role is Role.AGENT:
            floors = self._agent_view(context).floors
            listed = "; ".join(vehicle.line for vehicle in stock.vehicles)
            lowest = "; ".join(f"{vehicle.id} {floors[vehicle.id] // MINOR}" for vehicle in stock.vehicles)
            return f"You sell vehicles. Listed: {listed}. Floors: {lowest}."
        customer = self._customer_view(context)
        need = f"{customer.fuel} {customer.body}" if customer.fuel else customer.body
        concern = customer.objection or "none"
        return (
            f"You buy a vehicle. need {need}; budget {customer.budget // MINOR}; "
            f"concern {concern}; patience {customer.patience}"
        )

    def authority(self, context: Context) -> AuthorityLimits:
        return AuthorityLimits(floors=self._agent_view(context).floors, terms=OBJECTIONS)

    def overstep(self, context: Context, state: NegotiationState, text: str) -> str | None:
        turn = self.advance(context, state, Role.AGENT, text).turns[-1]
        if turn.blocked:
            return None
        return self._talk(context, state, turn.move).overstep(spoken_words(turn))

    def harmless(self, context: Context, state: NegotiationState, sentence: str) -> bool:
        return self._talk(context, state, None).harmless(sentence)

    def _talk(self, context: Context, state: NegotiationState, move: Move | None) -> PriceTalk:
        """What may be said beside the agent's move, which took effect (or is none)."""
        moves = [past.move for past in state.turns if past.role is Role.AGENT and past.move is not None]
        offers = [read_offer(past) for past in moves if past.kind == "offer"]
        bound = self._bound(state, move)
        return PriceTalk(
            items={
                vehicle.id: Item(
                    vehicle.id,
                    major(vehicle.list_price),
                    frozenset(major(price) for vehicle_id, price in offers if vehicle_id == vehicle.id),
                )
                for vehicle in self._stock(context).vehicles
            },
            moved=None if bound is None else (bound[0], major(bound[1])),
            closes=move is not None and move.kind == "accept",
            leaves=move is not None and move.kind == "quit",
            about=read_offer(state.standing)[0] if state.standing else None,
            heard=tuple(past.shown for past in state.turns if past.role is Role.COUNTERPART),
            terms=self.authority(context).terms,
        )

    def stake(self, context: Context, state: NegotiationState, move: Move) -> Stake | None:
        bound = self._bound(state, move)
        vehicle = None if bound is None else self._stock(context).find(bound[0])
        if bound is None or vehicle is None:
            return None
        floor = self._agent_view(context).floors[vehicle.id]
        room = vehicle.list_price - floor
        return Stake(price=bound[1], margin=(bound[1] - floor) / room if room else 1.0)

    def _bound(self, state: NegotiationState, move: Move | None) -> tuple[str, int] | None:
        """Vehicle and price that the agent's legal move would bind the business to."""
        terms = state.standing if move is not None and move.kind == "accept" else move
        return read_offer(terms) if terms is not None and terms.kind == "offer" else None

    def begin(self, context: Context) -> NegotiationState:
        self.validate(context)
        return NegotiationState(next_speaker=context.first_speaker)

    def advance(self, context: Context, state: NegotiationState, role: Role, text: str) -> NegotiationState:
        require_turn(state, role)
        parsed = parse_message(text)
        move, rejected = parsed.move, self._illegal(context, state, role, parsed.move)
        if rejected:
            return take_turn(state, role, parsed, move=None, rejected=rejected, max_turns=self.max_turns)
        terms = state.standing if move and move.kind == "accept" else move
        if role is Role.AGENT and terms is not None and terms.kind == "offer":
            violation = self.authority(context).violation(*read_offer(terms))
            if violation:
                return take_turn(
                    state,
                    role,
                    parsed,
                    move=None,
                    rejected=violation,
                    shown=SAFE_REPLY,
                    blocked=True,
                    max_turns=self.max_turns,
                )
        changes: dict[str, object] = {}
        if move is not None and move.kind == "offer":
            changes = {"standing": move, "standing_by": role}
        elif move is not None and move.kind == "accept":
            changes = {"closed": CloseReason.AGREED, "agreement": state.standing}
        elif move is not None and move.kind == "quit":
            changes = {"closed": CloseReason.WALKED_AWAY}
        return take_turn(state, role, parsed, move=move, rejected=None, max_turns=self.max_turns, changes=changes)

    def _illegal(self, context: Context, state: NegotiationState, role: Role, move: Move | None) -> str | None:
        if move is None:
            return None
        if move.kind == "offer":
            try:
                vehicle_id, _ = read_offer(move)
            except ValueError as error:
                return str(error)
            ids: Sequence[str] = [vehicle.id for vehicle in self._stock(context).vehicles]
            return None if vehicle_id in ids else f"vehicle {vehicle_id!r} is not one of {', '.join(ids)}"
        if move.kind not in ("accept", "quit"):
            return f"{move} is no move of {self.name}: use [offer VEHICLE PRICE], [accept] or [quit]"
        if move.arguments:
            return f"{move} takes no arguments"
        if move.kind == "accept" and state.standing_by is not role.other:
            return f"{move} needs an offer of the other side on the table"
        return None

    def outcome(self, context: Context, state: NegotiationState) -> Outcome:
        if state.closed is None:
            raise ValueError("the negotiation is still open: no outcome yet")
        stock, floors = self._stock(context), self._agent_view(context).floors
        customer = self._customer_view(context)
        cost = BLOCKED_COST * sum(turn.blocked for turn in state.turns if turn.role is Role.AGENT)
        if state.agreement is None:
            return Outcome(
                agreed=False,
                success=False,
                rewards={Role.AGENT: 0.0 - cost, Role.COUNTERPART: -0.1},
                points={Role.AGENT: 0, Role.COUNTERPART: 0},
                detail=str(state.closed),
            )
        vehicle_id, price = read_offer(state.agreement)
        vehicle = stock.find(vehicle_id)
        assert vehicle is not None, "advance() admits only vehicles of the stock"
        floor = floors[vehicle_id]
        suits = customer.met_by(vehicle)
        success = suits and floor <= price <= customer.budget
        margin = 1.0 if vehicle.list_price == floor else (price - floor) / (vehicle.list_price - floor)
        surplus = 4 * (customer.budget - price) / customer.budget if suits else -1.0
        return Outcome(
            agreed=True,
            success=success,
            rewards={
                Role.AGENT: (0.8 + 0.2 * min(1.0, max(0.0, margin)) if success else 0.0) - cost,
                Role.COUNTERPART: min(1.0, max(-1.0, surplus)),
            },
            points={Role.AGENT: price - floor, Role.COUNTERPART: (customer.budget if suits else 0) - price},
            pareto_optimal=suits,
            detail="sold" if success else ("over budget" if suits else "does not meet the needs"),
        )

    def _stock(self, context: Context) -> Stock:
        return read_model(Stock, context.public, "public")

    def _agent_view(self, context: Context) -> AgentView:
        return read_model(AgentView, context.views.get(Role.AGENT), "views.agent")

    def _customer_view(self, context: Context) -> CustomerView:
        return read_model(CustomerView, context.views.get(Role.COUNTERPART), "views.counterpart")


def major(price: int) -> Decimal:
    """Minor units in whole ones, as messages write them."""
    return Decimal(price) / MINOR


def _grid(price: float, *, up: bool = False) -> int:
    """A price in major units put on the grid of 250."""
    return int(-(-price // GRID) if up else price // GRID) * GRID
