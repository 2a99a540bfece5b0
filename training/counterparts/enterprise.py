"""Corporate purchasing: a fixed policy that nobody can influence.

One figure, read from a table before anybody speaks; take it or leave it. It never concedes, never explains, does
not answer to arguments and ends after a fixed number of turns. Whatever a policy gains against it, it has gained
by meeting the figure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from negotiation.deal_or_no_deal import Split, splits
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from negotiation.telesales import GRID, MINOR, CustomerView, Stock, offer
from training.counterparts.deal_negotiators import DealPlayer, DealWording, Table, both_roles
from training.counterparts.rules import FamilyRules, family_rules
from training.counterparts.telesales_customers import Bargain, read_bargain

PERCENT_OF_BUDGET = {"hatchback": 98, "estate": 97, "suv": 96, "van": 100, "coupe": 95}
"""What purchasing pays of an approved budget, by body."""
OTHER_BODIES = 97
POINTS_BY_POOL = {5: 5, 6: 6, 7: 6}
"""What a split must be worth to the firm, by the number of items in the pool."""
TURNS = 4


@dataclass(frozen=True)
class PolicyWording:
    """What purchasing says; ``{need}`` and ``{price}`` are filled in."""

    figure: Sequence[str]
    unavailable: Sequence[str]
    accept: Sequence[str]
    quit: Sequence[str]


PURCHASING = PolicyWording(
    figure=("Purchase requisition: {need}, approved amount {price}.",),
    unavailable=("Purchase requisition: {need}.",),
    accept=("Within the approved amount. Purchase order follows.",),
    quit=("The requisition is withdrawn.",),
)
ALLOCATION = DealWording(
    propose=("Allocation under our policy: {items}.",),
    agree=("Conforms to our policy.",),
    quit=("The allocation is withdrawn.",),
)


class PurchasingPolicy:
    """The telesales customer: repeats its figure, and takes a suitable vehicle at or under it."""

    role = Role.COUNTERPART

    def __init__(self, name: str, wording: PolicyWording) -> None:
        self.name, self.family, self.wording = name, name, wording

    @property
    def rules(self) -> FamilyRules:
        return family_rules(proposal=type(self).figure, acceptance=type(self).conforms, wording=self.wording)

    def figure(self, view: CustomerView) -> int:
        """The one price of the call in major units. Hangs on the customer's own view and nothing said."""
        percent = PERCENT_OF_BUDGET.get(view.body, OTHER_BODIES)
        return int(view.budget // MINOR * percent // 100 // GRID) * GRID

    def conforms(self, bargain: Bargain) -> bool:
        suitable = bargain.vehicle is not None and bargain.view.met_by(bargain.vehicle)
        return (
            suitable and bargain.acceptable and bargain.ask is not None and bargain.ask <= self.figure(bargain.view)
        )

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        view = CustomerView.model_validate(context.views[Role.COUNTERPART])
        stock = Stock.model_validate(context.public)
        bargain = read_bargain(view, stock, state)
        if self.conforms(bargain):
            return f"{rng.choice(self.wording.accept)} [accept]"
        if bargain.agent_turns >= TURNS:
            return f"{rng.choice(self.wording.quit)} [quit]"
        need = f"{view.fuel} {view.body}" if view.fuel else view.body
        vehicle = next((one for one in stock.vehicles if view.met_by(one)), None)
        price = self.figure(view)
        if vehicle is None or price <= 0:
            return rng.choice(self.wording.unavailable).format(need=need)
        words = rng.choice(self.wording.figure).format(need=need, price=price)
        return f"{words} {offer(vehicle.id, price * MINOR)}"


class AllocationPolicy(DealPlayer):
    """The Deal-or-NoDeal player: the smallest share that the table of points allows, and nothing less."""

    def _required(self, table: Table) -> int:
        return POINTS_BY_POOL[sum(table.counts)]

    def accepts(self, table: Table, share: Split, traits: random.Random) -> bool:
        return table.worth(share) >= self._required(table)

    def propose(self, table: Table, traits: random.Random) -> Split:
        enough = [share for share in splits(table.counts) if table.worth(share) >= self._required(table)]
        return min(enough, key=lambda share: (table.worth(share), sum(share), share))


CUSTOMERS: tuple[PurchasingPolicy, ...] = (PurchasingPolicy("enterprise", PURCHASING),)
PLAYERS: tuple[DealPlayer, ...] = both_roles(AllocationPolicy, "enterprise", ALLOCATION, patience=TURNS)
