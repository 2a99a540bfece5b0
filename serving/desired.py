"""What serving should be running, as told by whoever keeps the registry.

Serving knows no registry: the front door injects one that satisfies :class:`AdapterSource`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from negotiation.roles import Role


class ChampionAdapter(Protocol):
    """One immutable adapter version that can be fetched."""

    @property
    def name(self) -> str:
        """``agent@7``."""
        ...

    def fetch(self) -> Path:
        """Local directory with the adapter's files, downloaded if need be. Raises OSError if it cannot be had."""
        ...


class AdapterSource(Protocol):
    """Names the champion of a role."""

    def champion(self, role: Role) -> ChampionAdapter | None:
        """The version that new conversations should get, or None when nothing was promoted yet."""
        ...
