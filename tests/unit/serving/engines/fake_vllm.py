"""vLLM servers without a network or a model: they answer as the real one does, from arithmetic on token ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from serving.adapters import sha256_file

CONTEXT = 128


@dataclass
class FakeServer:
    """One server. ``weights`` tells its base from another; adapters are known by the digest of their files."""

    weights: int = 0
    adapters: dict[str, int] = field(default_factory=dict)
    fails: Callable[[str, dict[str, Any]], Exception | httpx.Response | None] = lambda path, body: None
    ignores_adapters: bool = False
    completions: list[dict[str, Any]] = field(default_factory=list)
    breaks_after: int | None = None

    def answer(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content or b"{}")
        failure = self.fails(path, body)
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            return failure
        match path:
            case "/v1/models":
                entries = [{"id": "served", "parent": None, "max_model_len": CONTEXT}]
                return _json({"data": [*entries, *({"id": name, "parent": "served"} for name in self.adapters)]})
            case "/v1/load_lora_adapter":
                return self._load(body["lora_name"], Path(body["lora_path"]))
            case "/v1/unload_lora_adapter":
                known = self.adapters.pop(body["lora_name"], None)
                return httpx.Response(200 if known is not None else 404, text="of lora")
            case "/v1/completions":
                return self._complete(body)
        return _json({"error": {"message": "no such route"}}, 404)

    def restart(self) -> None:
        self.adapters.clear()

    def _load(self, name: str, directory: Path) -> httpx.Response:
        if name in self.adapters:
            return _json({"error": {"message": f"The lora adapter '{name}' has already been loaded."}}, 400)
        self.adapters[name] = int(sha256_file(directory / "adapter_model.safetensors")[:6], 16)
        return httpx.Response(200, text="Success: LoRA adapter added")

    def _complete(self, body: dict[str, Any]) -> httpx.Response:
        model = body["model"]
        if model != "served" and model not in self.adapters:
            return _json({"error": {"message": f"The model `{model}` does not exist."}}, 404)
        self.completions.append(body)
        shift = 0 if model == "served" or self.ignores_adapters else self.adapters[model]
        choices = [self._choice(place, prompt, shift, body) for place, prompt in enumerate(body["prompt"])]
        if not body["stream"]:
            return _json({"choices": choices})
        [choice] = choices
        lines = [
            "data: " + json.dumps({"choices": [{
                "index": 0, "token_ids": [token], "logprobs": {"token_logprobs": [logprob]},
                "finish_reason": "length" if place + 1 == len(choice["token_ids"]) else None,
            }]})
            for place, (token, logprob) in enumerate(
                zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True)
            )
        ]  # fmt: skip
        if self.breaks_after is not None:
            lines = lines[: self.breaks_after]
        else:
            lines.append("data: [DONE]")
        return httpx.Response(200, text="\n\n".join(lines) + "\n\n", headers={"content-type": "text/event-stream"})

    def _choice(self, place: int, prompt: list[int], shift: int, body: dict[str, Any]) -> dict[str, Any]:
        key = self.weights + shift
        tokens = [(sum(prompt) + key + step) % 50 for step in range(body["max_tokens"])]
        logprob = -1.0 - key % 97 / 10
        return {
            "index": place,
            "token_ids": tokens,
            "logprobs": {"token_logprobs": [logprob] * len(tokens)},
            "finish_reason": "length",
            "prompt_token_ids": prompt,
        }


def network(servers: dict[str, FakeServer]) -> httpx.MockTransport:
    """Servers by host name."""
    return httpx.MockTransport(lambda request: servers[request.url.host].answer(request))


def _json(value: Any, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=value)
