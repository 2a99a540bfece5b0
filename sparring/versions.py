"""Versions of adapters as an operator sees them: what is there, what serves, what to go back to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from negotiation.roles import Role
from sparring.errors import RefusedError

if TYPE_CHECKING:
    from pipelines.registry import MlflowRegistry

ORIGIN_TAG = "sparring.origin"


@dataclass(frozen=True)
class Version:
    """``earned``: it was promoted and not rolled back from, or is the version that everything began with."""

    name: str
    role: str
    version: int
    state: str
    earned: bool
    aliases: tuple[str, ...]
    scenario: str | None


def list_versions(registry: MlflowRegistry, role: Role) -> list[Version]:
    """All versions of a role, oldest first."""
    from pipelines.registry import PROMOTED_TAG, STATE_TAG, model_name

    aliases = registry.client.get_registered_model(model_name(role)).aliases
    found = registry.client.search_model_versions(f"name = '{model_name(role)}'")
    return sorted(
        (
            Version(
                name=f"{role}@{entry.version}",
                role=str(role),
                version=int(entry.version),
                state=entry.tags.get(STATE_TAG, "unknown"),
                earned=entry.tags.get(PROMOTED_TAG) == "true" or ORIGIN_TAG in entry.tags,
                aliases=tuple(sorted(name for name, number in aliases.items() if int(number) == int(entry.version))),
                scenario=entry.tags.get("sparring.scenario"),
            )
            for entry in found
        ),
        key=lambda version: version.version,
    )


def previous_champion(versions: Sequence[Version], current: int) -> Version:
    """The newest earned version before ``current``. Raises RefusedError if there is none."""
    from pipelines.registry import READY

    older = [entry for entry in versions if entry.version < current and entry.earned and entry.state == READY]
    if not older:
        raise RefusedError(f"there is no earlier champion than version {current}: name a version with --to")
    return older[-1]
