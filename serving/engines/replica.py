"""One vLLM server as this process sees it: whether it takes requests, and the calls that are made to it.

A replica is *down* until it has proved that it runs the right base model and holds every adapter that it should,
and again from the first sign that it does not. Which adapters those are, and when to repair, is the engine's
business (:mod:`serving.engines.vllm`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from negotiation.generation import GenerationChunk, GenerationRequest, GenerationResult, Sampling
from serving.engines import ReplicaStatus
from serving.engines.vllm_protocol import (
    ReplicaFailed,
    RequestRefused,
    completion_body,
    read_chunk,
    read_results,
    refusal,
)

PROBE = Sampling(max_tokens=4, temperature=0.0)
"""How a server is asked to prove which weights it answers from."""


class Replica:
    """Calls to one server. Blocking ones go through ``admin``; generation through the client of the caller's loop.

    ``base`` is what the server calls its base model. ``deaths`` counts how often it was seen failing.
    """

    def __init__(self, url: str, admin: httpx.Client) -> None:
        self.url = url.rstrip("/")
        self._admin = admin
        self._lock = threading.Lock()
        self._down: str | None = "not looked at yet"
        self._in_flight = 0
        self.deaths = 0
        self.base = ""

    @property
    def up(self) -> bool:
        return self._down is None

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def status(self) -> ReplicaStatus:
        down = self._down
        return ReplicaStatus(self.url, "up" if down is None else "down", down or "", self._in_flight)

    def mark_up(self, deaths: int) -> bool:
        """Take requests, unless it was seen failing since ``deaths`` was read: then it is still down."""
        with self._lock:
            if self.deaths == deaths:
                self._down = None
            return self._down is None

    def mark_down(self, reason: str) -> None:
        with self._lock:
            self._down = reason
            self.deaths += 1

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Counts a request while it runs."""
        with self._lock:
            self._in_flight += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1

    async def complete(
        self, client: httpx.AsyncClient, model: str, requests: Sequence[GenerationRequest]
    ) -> list[GenerationResult]:
        """Requests with one adapter and one sampling. Raises ReplicaFailed, RequestRefused, TimeoutError."""
        prompts = [request.prompt_ids for request in requests]
        body = completion_body(prompts, model, requests[0].sampling, stream=False)
        with self.serving(), _failures(self.url):
            answer = await client.post(f"{self.url}/v1/completions", json=body)
            return read_results(_payload(answer, model), requests)

    async def stream(
        self, client: httpx.AsyncClient, model: str, request: GenerationRequest
    ) -> AsyncGenerator[GenerationChunk, None]:
        """One request in parts. Closing the iterator closes the connection, which makes the server stop."""
        body = completion_body([request.prompt_ids], model, request.sampling, stream=True)
        with self.serving(), _failures(self.url):
            async with client.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    _payload(answer, model)
                finished = False
                async for line in answer.aiter_lines():
                    chunk = read_chunk(line)
                    if chunk is not None:
                        finished = chunk.finish_reason is not None
                        yield chunk
                if not finished:
                    raise ReplicaFailed(f"{self.url}: the stream ended before the completion did")

    def models(self) -> list[dict[str, Any]]:
        """What the server says it serves: the base model first, then adapters. Raises ReplicaFailed."""
        with _failures(self.url):
            answer = self._admin.get(f"{self.url}/v1/models")
            return list(_payload(answer, "")["data"])

    def load(self, wire_name: str, directory: Path) -> None:
        """Make the server load an adapter. Raises ReplicaFailed, RequestRefused."""
        with _failures(self.url):
            body = {"lora_name": wire_name, "lora_path": str(directory)}
            answer = self._admin.post(f"{self.url}/v1/load_lora_adapter", json=body)
            if answer.status_code == httpx.codes.NOT_FOUND and "lora" not in answer.text.lower():
                raise RequestRefused(
                    f"{self.url} has no /v1/load_lora_adapter: start vLLM with --enable-lora and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
                )
            if answer.is_client_error:
                raise RequestRefused(f"{self.url} refuses to load {wire_name}: {answer.text[:300]}")
            _payload(answer, "")

    def unload(self, wire_name: str) -> None:
        """Make the server forget an adapter; one that it does not hold is fine. Raises ReplicaFailed."""
        with _failures(self.url):
            answer = self._admin.post(f"{self.url}/v1/unload_lora_adapter", json={"lora_name": wire_name})
            if answer.status_code != httpx.codes.NOT_FOUND:
                _payload(answer, "")

    def probe(self, model: str, prompts: Sequence[Sequence[int]]) -> list[GenerationResult]:
        """Greedy answers to fixed prompts from the base or an adapter. Raises ReplicaFailed."""
        asked = [GenerationRequest(tuple(prompt), sampling=PROBE) for prompt in prompts]
        with _failures(self.url):
            body = completion_body(prompts, model, PROBE, stream=False)
            answer = self._admin.post(f"{self.url}/v1/completions", json=body)
            return read_results(_payload(answer, model), asked)


@contextmanager
def _failures(url: str) -> Iterator[None]:
    """What the HTTP client raises, as what the engine knows."""
    try:
        yield
    except httpx.PoolTimeout as error:
        raise ReplicaFailed(f"{url}: no free connection") from error
    except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
        raise TimeoutError(f"{url} did not answer in time") from error
    except httpx.TransportError as error:
        raise ReplicaFailed(f"{url}: {type(error).__name__}: {error}") from error


def _payload(answer: httpx.Response, model: str) -> Any:
    if answer.is_success and not answer.headers.get("content-type", "").startswith("application/json"):
        return {}
    try:
        payload = json.loads(answer.content)
    except ValueError:
        payload = answer.text
    if not answer.is_success:
        raise refusal(answer.status_code, payload, model)
    return payload
