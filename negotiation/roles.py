"""The two chairs at the table."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """Who is speaking: the business's agent, or the customer across from it."""

    AGENT = "agent"
    COUNTERPART = "counterpart"

    @property
    def other(self) -> Role:
        return Role.COUNTERPART if self is Role.AGENT else Role.AGENT
