"""What every engine refuses at the entrance, in the same words: requests and adapters that cannot work."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from negotiation.adapter import AdapterManifest, AdapterName
from negotiation.generation import BASE, AdapterNotLoaded, GenerationRequest, PromptTooLong
from serving.adapters import AdapterRejected, verify_adapter
from serving.engines import AdapterSlotsFull
from serving.engines.adapter_weights import check_fit


@dataclass(frozen=True)
class AdapterLimits:
    """What an adapter must fit: the base model's digest and layers, the engine's slots and highest rank."""

    base_sha256: str
    layers: dict[str, tuple[int, int]]
    max_adapters: int
    max_rank: int


def check_adapter(name: str, directory: Path, loaded: Collection[str], limits: AdapterLimits) -> AdapterManifest:
    """``loaded`` are the adapters that hold slots.

    Raises ValueError for a malformed or taken name, AdapterSlotsFull, AdapterRejected.
    """
    AdapterName.parse(name)
    if name in loaded:
        raise ValueError(f"adapter {name} is loaded already; versions never change, load a new one")
    if len(loaded) >= limits.max_adapters:
        raise AdapterSlotsFull(
            f"{len(loaded)} adapters are loaded, the limit is {limits.max_adapters}; unload a drained version first "
            "or raise max_adapters"
        )
    manifest = verify_adapter(directory, base_sha256=limits.base_sha256, max_rank=limits.max_rank)
    if manifest.name != name:
        raise AdapterRejected(f"the directory holds {manifest.name}, not {name}; point at {name}'s directory")
    check_fit(limits.layers, name, directory)
    return manifest


def check_request(
    request: GenerationRequest, loaded: Collection[str], *, context_length: int, vocabulary: int
) -> None:
    """Raises AdapterNotLoaded, PromptTooLong, ValueError (empty prompt, unknown token id)."""
    if request.adapter != BASE and request.adapter not in loaded:
        raise AdapterNotLoaded(f"adapter {request.adapter!r} is not loaded; loaded: {sorted(loaded)}")
    ids, sampling = request.prompt_ids, request.sampling
    if not ids:
        raise ValueError("the prompt is empty; give at least one token")
    if len(ids) + sampling.max_tokens > context_length:
        raise PromptTooLong(
            f"prompt of {len(ids)} tokens and max_tokens {sampling.max_tokens} exceed the model's context of "
            f"{context_length} tokens; shorten the dialogue or lower max_tokens"
        )
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise ValueError(f"prompt ids must be from 0 to {vocabulary - 1}, got {min(ids)} to {max(ids)}")
