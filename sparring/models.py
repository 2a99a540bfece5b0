"""Finds the base model: the bundled one, a directory, or a Hugging Face model id.

Only safetensors are read. The digest of the weights is what adapters are bound to, so it is computed here, once,
from the bytes on disk.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sparring.errors import MisuseError

BUNDLED = "bundled"
BUNDLED_DIRECTORY = Path(__file__).with_name("base_model")
DIGEST_FILE = "model.sha256"
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt", "*.model"]


class BaseModelError(MisuseError):
    """There is no usable base model where one was named."""


@dataclass(frozen=True)
class ResolvedModel:
    """A model directory on this machine. ``sha256`` is over ``model.safetensors``, lower-case hex."""

    path: Path
    sha256: str
    name: str


def resolve_base_model(reference: str) -> ResolvedModel:
    """The model behind ``bundled``, a path, or a hub id such as ``HuggingFaceTB/SmolLM2-135M-Instruct``.

    Raises BaseModelError if it is not there, has no safetensors, or its digest is not the one recorded beside it.
    """
    if reference == BUNDLED:
        path, name = BUNDLED_DIRECTORY, BUNDLED
    elif (here := Path(reference).expanduser()).exists():
        path, name = here.resolve(), here.name
    else:
        path, name = _download(reference), reference
    return ResolvedModel(path=path, sha256=_checked_digest(path), name=name)


def _download(reference: str) -> Path:
    looks_like_path = reference.startswith((".", "/", "~")) or reference.count("/") > 1
    if not looks_like_path:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

        try:
            return Path(snapshot_download(reference, allow_patterns=_PATTERNS))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
            raise BaseModelError(
                f"base_model {reference!r} is neither a directory here nor a model that the hub gave us "
                f"({type(error).__name__}); name a directory, or `{BUNDLED}`"
            ) from error
    raise BaseModelError(f"base_model {reference!r}: no such directory; name one, a hub id, or `{BUNDLED}`")


def _checked_digest(path: Path) -> str:
    for needed in ("config.json",):
        if not (path / needed).is_file():
            raise BaseModelError(f"{path} has no {needed}: a Hugging Face model directory is needed")
    weights = _weight_files(path)
    stamps = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in weights)
    digest = _digest(stamps)
    recorded = path / DIGEST_FILE
    if recorded.is_file():
        expected = recorded.read_text(encoding="utf-8").split()[:1]
        if expected != [digest]:
            raise BaseModelError(
                f"{path / _WEIGHTS} has sha256 {digest}, but {DIGEST_FILE} beside it says {' '.join(expected)}: the "
                "file was damaged or replaced; reinstall it, or build it again with `sparring model build`"
            )
    return digest


def _weight_files(path: Path) -> list[Path]:
    if (path / _WEIGHTS).is_file():
        return [path / _WEIGHTS]
    if (path / _INDEX).is_file():
        return sorted(path.glob("model-*.safetensors"))
    raise BaseModelError(f"{path} has no {_WEIGHTS}: only safetensors are read, never pickled weights")


@lru_cache(maxsize=8)
def _digest(stamps: tuple[tuple[str, int, int], ...]) -> str:
    """Over the shards in name order; keyed by size and time so that a large model is read once a process."""
    digest = hashlib.sha256()
    for file, _, _ in stamps:
        with Path(file).open("rb") as content:
            while chunk := content.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
