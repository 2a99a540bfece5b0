"""What goes to a vLLM server and what comes back, as plain values: no connection is made here.

``/v1/completions`` is used with token ids in and token ids out, so that no text is ever tokenised again. Every
sampling parameter is said explicitly: vLLM would take the model's ``generation_config.json`` for what is left out
(top_p and the like), and the log-probabilities would no longer be those of the distribution sampled from.
Source: vLLM's OpenAI-compatible server, version 0.32 (``return_token_ids``). ``prompt_logprobs`` is never asked for:
with adapters and other requests in the batch it ends vLLM 0.32's engine process (a mismatch of sizes in the logits).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from negotiation.generation import GenerationChunk, GenerationRequest, GenerationResult, Sampling


class ReplicaFailed(ConnectionError):
    """A server did not answer, or answered that it cannot: another may, and so may this one later."""


class AdapterMissing(ReplicaFailed):
    """A server no longer has an adapter that was loaded there: it was restarted, or somebody unloaded it."""


class RequestRefused(ValueError):
    """A server says that the request is at fault; asking again would not help."""


def completion_body(
    prompts: Sequence[Sequence[int]], model: str, sampling: Sampling, *, stream: bool
) -> dict[str, Any]:
    """The body of ``POST /v1/completions`` for one prompt, or for several with the same sampling."""
    return {
        "model": model,
        "prompt": [list(prompt) for prompt in prompts],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        # Only the stop tokens that were asked for end a completion, as in every other engine.
        "ignore_eos": True,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "stream": stream,
    }


def read_results(payload: dict[str, Any], requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
    """Completion i answers request i. Raises ReplicaFailed for an answer that is not whole."""
    choices = sorted(payload.get("choices", ()), key=lambda choice: choice["index"])
    if len(choices) != len(requests):
        raise ReplicaFailed(f"{len(choices)} completions came back for {len(requests)} prompts")
    results = []
    for choice, request in zip(choices, requests, strict=True):
        if choice.get("prompt_token_ids") != list(request.prompt_ids):
            raise ReplicaFailed("a completion came back for another prompt than the one sent")
        tokens, logprobs = _sampled(choice)
        reason = choice.get("finish_reason")
        if reason not in ("stop", "length") or not tokens:
            raise ReplicaFailed(f"a completion of {len(tokens)} tokens ended with {reason!r}")
        results.append(GenerationResult(tokens, logprobs, reason))
    return results


def read_chunk(line: str) -> GenerationChunk | None:
    """One line of a streamed answer; None for lines that carry no tokens. Raises ReplicaFailed."""
    if not line.startswith("data:"):
        return None
    data = line.removeprefix("data:").strip()
    if data == "[DONE]":
        return None
    payload = json.loads(data)
    if "error" in payload:
        raise ReplicaFailed(f"the stream broke: {_message(payload)}")
    if not payload.get("choices"):
        return None
    choice = payload["choices"][0]
    tokens, logprobs = _sampled(choice)
    reason = choice.get("finish_reason")
    if reason not in (None, "stop", "length"):
        raise ReplicaFailed(f"a completion ended with {reason!r}")
    return GenerationChunk(tokens, logprobs, reason) if tokens or reason else None


def refusal(status: int, payload: Any, model: str) -> Exception:
    """The error that an answer with this status means."""
    message = _message(payload)
    if status == 404 and model in message:
        return AdapterMissing(message)
    if status >= 500 or status in (404, 408, 429):
        return ReplicaFailed(f"HTTP {status}: {message}")
    return RequestRefused(f"the vLLM server refuses the request (HTTP {status}): {message}")


def _sampled(choice: dict[str, Any]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    tokens = tuple(choice.get("token_ids") or ())
    logprobs = tuple((choice.get("logprobs") or {}).get("token_logprobs") or ())
    if len(tokens) != len(logprobs) or None in logprobs:
        raise ReplicaFailed(f"{len(tokens)} tokens came back with {len(logprobs)} log-probabilities")
    return tokens, logprobs


def _message(payload: Any) -> str:
    error = payload.get("error", payload) if isinstance(payload, dict) else payload
    text = error.get("message", error) if isinstance(error, dict) else error
    return str(text)[:300]
