"""The engine that needs no service: transformers and PEFT in this process, on a CPU or one GPU.

Runs any Hugging Face causal language model directory with plain attention in every layer. Fast where models are
small and dialogues many: requests are batched by adapter, rows leave the batch as they stop, and finished
dialogues' attention states are kept for their next turn. Left out: several GPUs, quantisation, speculative
decoding, rows joining a running batch; the vLLM engine has those.

    engine = InProcessEngine(model_dir, base_sha256, max_adapters=6, max_batch=128, threads=1)
    engine.load_adapter("agent@1", Path("var/adapters/agent@1"))
    [result] = engine.generate([GenerationRequest(prompt_ids, "agent@1")])
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from negotiation.generation import (
    BASE,
    AdapterNotLoaded,
    GenerationChunk,
    GenerationRequest,
    GenerationResult,
    Sampling,
    Tokenizer,
)
from serving.adapters import AdapterRejected
from serving.engines import EngineClosed, ReplicaStatus
from serving.engines.adapter_weights import changes_output, choose, layer_shapes
from serving.engines.batcher import Batcher, Outcome
from serving.engines.checks import AdapterLimits, check_adapter, check_request
from serving.engines.decoding import Decoder
from serving.engines.kv_buffer import KvBuffer, kv_shape
from serving.engines.listener import Listener
from serving.engines.prefix_cache import PrefixCache

_PROBE_TOKENS = 24
_MIB = 2**20


class InProcessEngine:
    """Implements :class:`negotiation.generation.Engine`. Every method may be called from any thread."""

    def __init__(
        self,
        model_dir: Path,
        base_sha256: str,
        *,
        max_adapters: int,
        max_batch: int,
        threads: int,
        max_rank: int = 64,
        max_waiting: int = 1024,
        prefix_cache_bytes: int = 256 * _MIB,
        workspace_bytes: int = 512 * _MIB,
        merge_below: int = 50_000_000,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int | None = None,
    ) -> None:
        """Load the base model.

        ``threads`` sets torch's CPU threads for the whole process. ``prefix_cache_bytes`` bounds the attention
        states kept between turns (0: none), ``workspace_bytes`` those of the running batch. Adapters are merged
        into copies for models under ``merge_below`` parameters. ``seed`` is for requests that bring none.
        """
        torch.set_num_threads(threads)
        self._tokenizer = cast(Tokenizer, AutoTokenizer.from_pretrained(model_dir))
        model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation="sdpa")
        model = model.to(device).eval().requires_grad_(False)
        self._config = model.config
        self._limits = AdapterLimits(base_sha256, layer_shapes(model), max_adapters, max_rank)
        self._max_batch = max_batch
        self._workspace_bytes = workspace_bytes
        self._shape = kv_shape(model)
        self._decoder = Decoder(model, self.context_length)
        self._weights = choose(model, merge_below)
        self._prefixes = PrefixCache(prefix_cache_bytes) if prefix_cache_bytes else None
        self._workspace: torch.Tensor | None = None
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)
        self._serials = itertools.count(1)
        # A name's serial is new at every load, so nothing kept for one load is ever used for another.
        self._loaded: dict[str, int] = {BASE: 0}
        self._closed = False
        self._compute = threading.Lock()
        self._loading = threading.Lock()
        self._batcher = Batcher(self._answer, max_batch=max_batch, max_waiting=max_waiting)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def context_length(self) -> int:
        return int(self._config.max_position_embeddings)

    @property
    def waiting(self) -> int:
        """Requests of :meth:`generate_async` that no batch has taken yet."""
        return self._batcher.waiting

    @property
    def tokens_reused(self) -> int:
        """Prompt tokens so far whose attention states came from an earlier turn."""
        return 0 if self._prefixes is None else self._prefixes.tokens_reused

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Blocking; result i answers request i. The first failure of any request is raised.

        Raises AdapterNotLoaded, PromptTooLong, ValueError (empty prompt, unknown token id), NonFiniteLogits,
        EngineClosed.
        """
        for request in requests:
            self._check(request)
        outcomes = self._answer(requests, [None] * len(requests))
        results = []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
            results.append(outcome)
        return results

    async def generate_async(self, request: GenerationRequest) -> GenerationResult:
        """Like :meth:`generate` for one request, batched with whoever else waits. Raises EngineBusy too."""
        self._check(request)
        return await asyncio.wrap_future(self._batcher.submit(request))

    async def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        """Each token once its batch has sampled it. Raises what :meth:`generate_async` raises.

        A consumer that leaves early frees the row at the batch's next token.
        """
        self._check(request)
        listener = Listener()
        answer = self._batcher.submit(request, listener)
        answer.add_done_callback(listener.ended)
        chunk = None
        try:
            async for chunk in listener.chunks():
                yield chunk
            if chunk is None or chunk.finish_reason is None:
                await asyncio.wrap_future(answer)
        finally:
            listener.gone = True
            answer.cancel()

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """None: there is no server behind it."""
        return ()

    def load_adapter(self, name: str, directory: Path) -> None:
        """Verify and load. Generation goes on meanwhile.

        Raises ValueError for a malformed or taken name, AdapterSlotsFull, AdapterRejected.
        """
        with self._loading:
            if self._closed:
                raise EngineClosed("the engine is shut down and loads no adapters")
            check_adapter(name, directory, self.loaded_adapters(), self._limits)
            try:
                prepared = self._weights.prepare(name, directory)
                with self._compute:
                    self._weights.add(name, prepared)
            except (RuntimeError, ValueError, KeyError) as error:
                raise AdapterRejected(f"{name} does not fit this base model: {error}") from error
            try:
                self._probe(name, expect_change=changes_output(directory))
            except AdapterRejected:
                with self._compute:
                    self._weights.remove(name)
                raise
            self._loaded[name] = next(self._serials)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. A request in flight is answered by it still, or fails with AdapterNotLoaded."""
        with self._loading, self._compute:
            if name == BASE or name not in self._loaded:
                raise AdapterNotLoaded(f"adapter {name!r} is not loaded; loaded: {sorted(self.loaded_adapters())}")
            serial = self._loaded.pop(name)
            self._weights.remove(name)
            if self._prefixes is not None:
                self._prefixes.drop(serial)

    def loaded_adapters(self) -> frozenset[str]:
        return frozenset(self._loaded) - {BASE}

    def fingerprint(self, name: str) -> str:
        """sha256 over a fixed prompt's greedy continuation and its log-probabilities to four decimals.

        Equal on every replica that holds the same weights; differs between adapters that differ noticeably.
        """
        request = GenerationRequest(self._probe_ids(), name, Sampling(max_tokens=8, temperature=0.0))
        self._check(request)
        with self._compute:
            [result] = self._batch(name, [request], None, [None])
        pairs = zip(result.token_ids, result.logprobs, strict=True)
        text = " ".join(f"{token}:{logprob:.4f}" for token, logprob in pairs)
        return hashlib.sha256(text.encode()).hexdigest()

    def close(self) -> None:
        """Fail waiting requests with EngineClosed, let the running batch end, free the memory."""
        self._closed = True
        self._batcher.close()
        with self._compute:
            self._workspace = None
            if self._prefixes is not None:
                self._prefixes.clear()

    def _probe_ids(self) -> tuple[int, ...]:
        vocabulary = int(self._config.vocab_size)
        return tuple(place * 7919 % vocabulary for place in range(1, min(_PROBE_TOKENS, self.context_length - 8)))

    def _probe(self, name: str, *, expect_change: bool) -> None:
        """The loaded adapter gives finite logits, and others than the base unless its product is zero."""
        ids = torch.tensor([self._probe_ids()], device=self._shape.device)
        with self._compute, torch.inference_mode():
            with self._weights.active(name) as model:
                adapted = model(input_ids=ids).logits
            with self._weights.active(BASE) as model:
                plain = model(input_ids=ids).logits
        if not torch.isfinite(adapted).all():
            raise AdapterRejected(f"{name} gives non-finite logits on a fixed prompt; train it again")
        if expect_change and torch.equal(adapted, plain):
            raise AdapterRejected(f"{name} loaded but changes nothing: its modules do not match this model's layers")

    def _check(self, request: GenerationRequest) -> None:
        """Refuse at the entrance what would fail a whole batch later."""
        if self._closed:
            raise EngineClosed("the engine is shut down and takes no requests")
        vocabulary = int(self._config.vocab_size)
        check_request(request, self.loaded_adapters(), context_length=self.context_length, vocabulary=vocabulary)

    def _answer(self, requests: Sequence[GenerationRequest], listeners: Sequence[Listener | None]) -> list[Outcome]:
        """Group by adapter and run; a group's failure reaches that group's requests only."""
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(request.adapter, []).append(index)
        outcomes: dict[int, Outcome] = {}
        for name, indices in groups.items():
            longest = max(len(requests[index].prompt_ids) + requests[index].sampling.max_tokens for index in indices)
            rows = self._workspace_bytes // (longest * self._shape.bytes_per_token)
            size = max(1, min(self._max_batch, rows))
            for start in range(0, len(indices), size):
                part = indices[start : start + size]
                try:
                    with self._compute:
                        asked, hearing = [requests[i] for i in part], [listeners[i] for i in part]
                        results = self._batch(name, asked, self._prefixes, hearing)
                except Exception as error:
                    # Handed to the callers concerned by whoever called us.
                    outcomes.update(dict.fromkeys(part, error))
                else:
                    outcomes.update(zip(part, results, strict=True))
        return [outcomes[index] for index in range(len(requests))]

    def _batch(
        self,
        name: str,
        requests: Sequence[GenerationRequest],
        prefixes: PrefixCache | None,
        listeners: Sequence[Listener | None],
    ) -> list[GenerationResult]:
        """One adapter, one batch. The caller holds the compute lock."""
        serial = self._loaded.get(name)
        if serial is None:
            raise AdapterNotLoaded(f"adapter {name!r} was unloaded while the request waited")
        capacity = max(len(request.prompt_ids) + request.sampling.max_tokens for request in requests)
        with torch.inference_mode(), self._weights.active(name) as model:
            storage = self._storage(len(requests) * capacity)
            buffer = KvBuffer(self._shape, len(requests), capacity, storage)
            try:
                return self._decoder.run(model, requests, buffer, self._generator, prefixes, serial, listeners)
            except Exception:
                # It may hold NaN now, which would spread to other adapters' batches through masked slots.
                self._workspace = None
                raise

    def _storage(self, tokens: int) -> torch.Tensor:
        """The workspace, kept between batches because faulting fresh memory in costs more than using it."""
        size = tokens * self._shape.bytes_per_token // self._shape.dtype.itemsize
        if self._workspace is None or self._workspace.numel() < size:
            self._workspace = None
            self._workspace = torch.zeros(size, dtype=self._shape.dtype, device=self._shape.device)
        return self._workspace
