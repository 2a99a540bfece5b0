"""Authority limits: what the agent may bind the business to. Checked in code, on the structured move only.

The model's words carry no authority, however they were obtained. An offer or acceptance beyond the limits
does not take effect, and the other side is shown :data:`SAFE_REPLY` in its place.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SAFE_REPLY = "I can not agree to that. What else can I do for you?"


class AuthorityLimits(BaseModel):
    """Lowest price per item in minor units; an item that is not listed may not be sold at all.

    ``floors`` None means: the scenario has no money, nothing to limit.
    """

    model_config = ConfigDict(frozen=True)

    floors: dict[str, int] | None = None

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
