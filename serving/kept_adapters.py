"""Adapter files as this replica keeps them: a copy per version, for as long as a restart may need it.

The registry's own cache may be cleaned, or be out of reach when the service starts again; conversations pinned
to an old version must go on all the same. Copies appear under their name only once they are whole.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from negotiation.adapter import AdapterName
from negotiation.roles import Role
from serving.desired import AdapterSource, ChampionAdapter


@dataclass(frozen=True)
class KeptChampion:
    """A champion whose ``fetch`` gives the kept copy."""

    name: str
    champion: ChampionAdapter
    directory: Path

    def fetch(self) -> Path:
        if not self.directory.is_dir():
            _copy(self.champion.fetch(), self.directory)
        return self.directory


class KeptAdapters:
    """An AdapterSource that keeps what another one fetches in ``directory/<name>``."""

    def __init__(self, source: AdapterSource, directory: Path) -> None:
        self._source = source
        self._directory = directory

    def champion(self, role: Role) -> KeptChampion | None:
        champion = self._source.champion(role)
        if champion is None:
            return None
        return KeptChampion(champion.name, champion, kept_directory(self._directory, champion.name))


def kept_directory(directory: Path, name: str) -> Path:
    """Where a version is kept. Raises ValueError for a name that is not ``agent@7``-like."""
    return directory / str(AdapterName.parse(name))


def _copy(fetched: Path, directory: Path) -> None:
    if fetched.resolve() == directory.resolve():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}")
    try:
        # Links are copied as links, which the check before the load then refuses.
        shutil.copytree(fetched, draft, symlinks=True)
        draft.rename(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
