"""The production engine: one or several vLLM servers behind one :class:`negotiation.generation.Engine`.

    request -> a replica that is up -> tokens, with retries elsewhere while nothing has been shown
    adapter -> checked here -> loaded and probed on every replica -> usable

On the wire an adapter's name carries the digest of its weights (``agent@7#3fa9c1d2e4b5``): vLLM keys its prefix
cache by that name, and a server may outlive the registry or the training run that named a version.

A replica that was restarted has lost its adapters; it takes no request until :mod:`serving.engines.keeper` has given
them back and they answered a fixed prompt as they did before. Several serving processes may share replicas: none of
them unloads what it did not load. Left out: starting vLLM (an ops matter), and hiding that a replica is slow.

    engine = VllmEngine(model_dir, base_sha256, VllmSettings(urls=["http://127.0.0.1:8801"]), max_adapters=6)
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TypeVar, cast

import httpx
from transformers import AutoConfig, AutoTokenizer

from negotiation.adapter import WEIGHTS_FILE
from negotiation.generation import (
    GenerationChunk,
    GenerationRequest,
    GenerationResult,
    Tokenizer,
)
from serving.adapters import AdapterRejected
from serving.config import VllmSettings
from serving.engines import EngineBusy, EngineClosed, EngineUnavailable, ReplicaStatus
from serving.engines.adapter_weights import changes_output, stored_shapes
from serving.engines.checks import AdapterLimits, check_adapter, check_request
from serving.engines.connections import Connections
from serving.engines.keeper import Keeper
from serving.engines.replica import Replica
from serving.engines.retries import Retries
from serving.engines.routing import choose
from serving.engines.vllm_protocol import AdapterMissing, ReplicaFailed, RequestRefused

T = TypeVar("T")


class VllmEngine:
    """Implements :class:`negotiation.generation.Engine`. Every method may be called from any thread or loop."""

    def __init__(
        self,
        model_dir: Path,
        base_sha256: str,
        settings: VllmSettings,
        *,
        max_adapters: int,
        max_rank: int = 64,
        max_waiting: int = 1024,
        transport: httpx.MockTransport | None = None,
    ) -> None:
        """``transport`` stands in for the network. Raises EngineUnavailable if no server can be used."""
        self._tokenizer = cast(Tokenizer, AutoTokenizer.from_pretrained(model_dir))
        self._vocabulary = int(AutoConfig.from_pretrained(model_dir).vocab_size)
        self._limits = AdapterLimits(base_sha256, stored_shapes(model_dir), max_adapters, max_rank)
        self._prompts_per_request, self._max_waiting = settings.prompts_per_request, max_waiting
        self._waiting = 0
        self._counting = threading.Lock()
        self._closed = False
        self._connections = Connections(settings, transport)
        self._replicas = [Replica(str(url), self._connections.admin) for url in settings.urls]
        self._retries = Retries(settings.attempts, settings.retry_share)
        self._keeper = Keeper(
            self._replicas, self._vocabulary, every=settings.probe_seconds, tolerance=settings.probe_tolerance
        )
        try:
            self._keeper.start()
        except EngineUnavailable:
            self._connections.close()
            raise
        self.context_length = self._keeper.context_length

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def waiting(self) -> int:
        """Requests that have not been answered yet."""
        return self._waiting

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Where each replica stands."""
        return tuple(replica.status for replica in self._replicas)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Blocking; result i answers request i. Requests of one adapter and sampling travel together.

        Raises AdapterNotLoaded, PromptTooLong, ValueError, EngineUnavailable, EngineClosed, TimeoutError.
        """
        for request in requests:
            self._check(request)
        results: dict[int, GenerationResult] = {}

        async def answer(part: list[int]) -> None:
            asked = [requests[index] for index in part]
            results.update(zip(part, await self._complete(asked), strict=True))

        async def answer_all() -> None:
            await asyncio.gather(*(answer(part) for part in self._parts(requests)))

        self._connections.run(answer_all())
        return [results[index] for index in range(len(requests))]

    async def generate_async(self, request: GenerationRequest) -> GenerationResult:
        """One request. Raises EngineBusy beyond ``max_waiting``, and what :meth:`generate` raises."""
        self._check(request)
        with self._admitted():
            [result] = await self._complete([request])
            return result

    async def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationChunk]:
        """Token by token. A replica that fails before the first one is replaced; later the error is raised."""
        self._check(request)
        with self._admitted():
            async with AsyncExitStack() as stack:
                replica, first, others = await self._begin(request, stack)
                yield first
                try:
                    async for chunk in others:
                        yield chunk
                except ReplicaFailed as error:
                    replica.mark_down(str(error))
                    self._keeper.wake()
                    raise EngineUnavailable(str(error)) from error

    def load_adapter(self, name: str, directory: Path) -> None:
        """Check, load on every replica that is up, and probe on each. Replicas that are down get it when they return.

        Raises ValueError for a malformed or taken name, AdapterSlotsFull, AdapterRejected (then no replica keeps it),
        EngineUnavailable.
        """
        directory = directory.absolute()
        with self._keeper.changing():
            if self._closed:
                raise EngineClosed("the engine is shut down and loads no adapters")
            manifest = check_adapter(name, directory, self._keeper.held, self._limits)
            wire = f"{name}#{manifest.files[WEIGHTS_FILE][:12]}"
            try:
                self._keeper.place(name, wire, directory, expect_change=changes_output(directory))
            except RequestRefused as error:
                raise AdapterRejected(f"{name}: {error}") from error

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter everywhere. A request in flight is answered by it still, or fails."""
        with self._keeper.changing():
            self._keeper.drop(name)

    def loaded_adapters(self) -> frozenset[str]:
        """What can be asked for now; nothing while no replica is up."""
        return frozenset(self._keeper.held) if any(replica.up for replica in self._replicas) else frozenset()

    def fingerprint(self, name: str) -> str:
        """sha256 over the weights' name and how every replica that is up answers a fixed prompt with it.

        Log-probabilities are compared within a tolerance, since those of a server depend a little on what else is in
        its batch: the fingerprint changes exactly when a replica strays further from what it answered when loaded.
        Raises AdapterNotLoaded, EngineUnavailable.
        """
        with self._keeper.changing():
            return hashlib.sha256(self._keeper.answer(name).encode()).hexdigest()

    def close(self) -> None:
        """Stop the upkeep and close every connection. Adapters stay with the servers. Safe to call twice."""
        self._closed = True
        self._keeper.stop()
        self._connections.close()

    async def _complete(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        tried: set[Replica] = set()
        try:
            async for attempt in self._retries.attempts():
                with attempt:
                    replica, model = self._route(requests, tried)
                    answer = replica.complete(self._connections.client(), model, requests)
                    return await self._watched(replica, answer)
        except ReplicaFailed as error:
            raise EngineUnavailable(str(error)) from error
        raise AssertionError("attempts end with a result or an error")

    async def _begin(
        self, request: GenerationRequest, stack: AsyncExitStack
    ) -> tuple[Replica, GenerationChunk, AsyncIterator[GenerationChunk]]:
        """A stream's replica, its first chunk and the others; ``stack`` closes it."""
        tried: set[Replica] = set()
        try:
            async for attempt in self._retries.attempts():
                with attempt:
                    replica, model = self._route([request], tried)
                    chunks = replica.stream(self._connections.client(), model, request)
                    stack.push_async_callback(chunks.aclose)
                    return replica, await self._watched(replica, anext(chunks)), chunks
        except ReplicaFailed as error:
            raise EngineUnavailable(str(error)) from error
        raise AssertionError("attempts end with a result or an error")

    async def _watched(self, replica: Replica, answer: Awaitable[T]) -> T:
        """Await, and take the replica out of service when it fails; a lost adapter is given back at once."""
        try:
            return await answer
        except AdapterMissing as error:
            replica.mark_down(str(error))
            await asyncio.to_thread(self._keeper.repair, replica)
            raise
        except ReplicaFailed as error:
            replica.mark_down(str(error))
            self._keeper.wake()
            raise

    def _route(self, requests: Sequence[GenerationRequest], tried: set[Replica]) -> tuple[Replica, str]:
        """Where to, rather not where it was ``tried``, and the adapter's name there.

        Raises AdapterNotLoaded, ReplicaFailed (nobody is up).
        """
        prompt = requests[0].prompt_ids if len(requests) == 1 else None
        untried = [replica for replica in self._replicas if replica not in tried]
        replica = choose(untried, prompt) or choose(self._replicas, prompt)
        if replica is None:
            raise ReplicaFailed(f"no vLLM server is up ({self._keeper.reasons()}); they are tried again all the time")
        tried.add(replica)
        return replica, self._keeper.model(replica, requests[0].adapter)

    def _parts(self, requests: Sequence[GenerationRequest]) -> Iterator[list[int]]:
        """Places of requests that may travel together. A seed is the whole request's on a server: those go alone."""
        groups: dict[object, list[int]] = {}
        for index, request in enumerate(requests):
            alone = index if request.sampling.seed is not None else None
            groups.setdefault((request.adapter, request.sampling, alone), []).append(index)
        size = self._prompts_per_request
        for places in groups.values():
            yield from (places[start : start + size] for start in range(0, len(places), size))

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        with self._counting:
            if self._waiting >= self._max_waiting:
                raise EngineBusy(
                    f"{self._waiting} requests wait for vLLM, the limit is {self._max_waiting}; try again later, or "
                    "add replicas"
                )
            self._waiting += 1
        try:
            yield
        finally:
            with self._counting:
                self._waiting -= 1

    def _check(self, request: GenerationRequest) -> None:
        """Refuse at the entrance what a server would refuse."""
        if self._closed:
            raise EngineClosed("the engine is shut down and takes no requests")
        check_request(request, self._keeper.held, context_length=self.context_length, vocabulary=self._vocabulary)
