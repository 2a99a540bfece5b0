"""Authority limits: what the agent may bind the business to. Checked in code, on the structured move only.

The model's words carry no authority, however they were obtained. An offer or acceptance beyond the limits
does not take effect, and the other side is shown :data:`SAFE_REPLY` in its place. Words that promise what no move
makes are not shown either: ``Scenario.overstep`` finds them. Within the limits, :class:`ApprovalRule` says which
offers a person must confirm first.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SAFE_REPLY = "I can not agree to that. What else can I do for you?"
APPROVAL_NOTICE = "I have to ask a colleague about that first. You will hear from us."


class AuthorityLimits(BaseModel):
    """Lowest price per item in minor units; an item that is not listed may not be sold at all.

    ``floors`` None means: the scenario has no money, nothing to limit. ``terms`` are the extras that the agent may
    call included. One offer is of one item; nothing else can be promised.
    """

    model_config = ConfigDict(frozen=True)

    floors: dict[str, int] | None = None
    terms: tuple[str, ...] = ()

    def violation(self, item: str, price: int) -> str | None:
        """Why this item at this price (minor units) may not be agreed to, or None."""
        if self.floors is None:
            return None
        floor = self.floors.get(item)
        if floor is None:
            return f"item {item!r} is not in the authorised stock ({', '.join(sorted(self.floors))})"
        if price < floor:
            return f"price {price} for item {item!r} is under its floor {floor} (minor units)"
        return None


class Stake(BaseModel):
    """What a move would bind the business to. ``margin``: 0 at the floor, 1 at the list price."""

    model_config = ConfigDict(frozen=True)

    price: int
    margin: float


class ApprovalRule(BaseModel):
    """Which offers and acceptances within the limits wait for a person's approval. None switches a rule off.

    ``above_price``: the price (minor units) from which on one is asked; ``below_margin``: the share of the way from
    floor to list price under which one is.
    """

    model_config = ConfigDict(frozen=True)

    above_price: int | None = None
    below_margin: float | None = None

    def asks(self, stake: Stake | None) -> bool:
        """Whether a move of this stake needs approval."""
        if stake is None:
            return False
        dear = self.above_price is not None and stake.price >= self.above_price
        return dear or (self.below_margin is not None and stake.margin < self.below_margin)
