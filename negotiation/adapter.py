"""Names and manifests of adapters. Adapters are immutable, versioned and safetensors only.

Pure: reading and hashing files is for the packages that touch disk.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field

from negotiation.roles import Role

MANIFEST_FILE = "manifest.json"
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
_NAME = re.compile(r"(agent|counterpart)@([1-9][0-9]{0,8})(?:-step([0-9]{1,9}))?")


class AdapterName(BaseModel):
    """``agent@7``; a training run also names its steps on the way there: ``agent@7-step12``."""

    model_config = ConfigDict(frozen=True)

    role: Role
    version: int = Field(ge=1)
    step: int | None = None

    def __str__(self) -> str:
        suffix = "" if self.step is None else f"-step{self.step}"
        return f"{self.role}@{self.version}{suffix}"

    @classmethod
    def parse(cls, name: str) -> AdapterName:
        """Read ``agent@7``. Raises ValueError for anything else: paths, dots and slashes never pass."""
        match = _NAME.fullmatch(name)
        if not match:
            raise ValueError(f"adapter name {name!r} is not of the form agent@7 or counterpart@7")
        step = match[3]
        return cls(role=Role(match[1]), version=int(match[2]), step=None if step is None else int(step))


class AdapterManifest(BaseModel):
    """What an adapter directory says of itself, checked before any load.

    ``files`` maps each file name (no folders) to its sha256 in lower-case hex; ``base_sha256`` is the digest
    of the base model's weights that the adapter was trained on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    name: str
    role: Role
    base_model: str
    base_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    rank: int = Field(ge=1)
    target_modules: tuple[str, ...]
    files: dict[str, str]
