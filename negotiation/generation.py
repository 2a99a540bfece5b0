"""The seam between a role and the language model that speaks for it.

Serving and training both generate through :class:`Engine`; the in-process and the vLLM implementations live
in ``serving.engines``. Token ids and log-probabilities always come back, so that training uses the very
tokens that were sampled and never encodes text a second time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

BASE = "base"
"""The adapter name that means: the base model, no adapter."""


@dataclass(frozen=True)
class Sampling:
    """How to sample. Training uses temperature 1 and nothing else: truncation biases the importance ratio."""

    max_tokens: int = 48
    temperature: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, must be at least 1")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}, must be 0 (greedy) or more")


@dataclass(frozen=True)
class GenerationRequest:
    """Continue ``prompt_ids`` with the named adapter (``agent@7`` or :data:`BASE`)."""

    prompt_ids: tuple[int, ...]
    adapter: str = BASE
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class GenerationResult:
    """What was sampled.

    ``token_ids`` has length T and includes the stop token when one was sampled; ``logprobs`` has length T,
    natural log under the sampling distribution at temperature 1 (log-softmax of the raw logits).
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class GenerationChunk:
    """Some tokens of a completion as they were sampled.

    ``finish_reason`` stands on the last chunk, which alone may be without tokens. The chunks of a request, put
    together, are what :class:`GenerationResult` would have held.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"] | None = None


class AdapterNotLoaded(LookupError):
    """The engine was asked for an adapter it does not hold."""


class PromptTooLong(ValueError):
    """Prompt and requested tokens do not fit the model's context window."""


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that this project calls."""

    @property
    def eos_token_id(self) -> Any: ...

    def encode(self, text: str, **options: Any) -> list[int]: ...

    def decode(self, token_ids: list[int], **options: Any) -> Any: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


@runtime_checkable
class Engine(Protocol):
    """Generates tokens for named adapters. Adapter names are immutable: never reloaded in place."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def context_length(self) -> int:
        """Most tokens, prompt and completion together, that the model takes."""
        ...

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Blocking, batched. Result i answers request i. Raises AdapterNotLoaded, PromptTooLong."""
        ...

    async def generate_async(self, request: GenerationRequest) -> GenerationResult:
        """One request; concurrent callers are batched together, across adapters."""
        ...

    def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        """Like :meth:`generate_async`, in parts as they come. Leaving the iterator early cancels the request."""
        ...

    def load_adapter(self, name: str, directory: Path) -> None:
        """Make an adapter available. ValueError if the name is taken or the adapter does not fit."""
        ...

    def unload_adapter(self, name: str) -> None: ...

    def loaded_adapters(self) -> frozenset[str]: ...

    def close(self) -> None: ...
