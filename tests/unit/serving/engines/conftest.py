"""Real adapters of the tiny model, and engines that are closed again when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from negotiation.adapter import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest, AdapterName
from serving.adapters import sha256_file
from serving.engines.in_process import InProcessEngine

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="session")
def tiny_base_sha256(tiny_model_dir: Path) -> str:
    return sha256_file(tiny_model_dir / "model.safetensors")


@pytest.fixture
def write_adapter(tiny_model_dir: Path, tiny_base_sha256: str, tmp_path: Path) -> Callable[..., Path]:
    """``write_adapter("agent@2", seed=2, spread=0.3)``: random A and B (``spread`` 0 leaves B zero)."""

    def write(name: str, *, seed: int = 0, spread: float = 0.3, rank: int = 8, **options: Any) -> Path:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        directory = tmp_path / "adapters" / name
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
        settings: dict[str, Any] = {"r": rank, "lora_alpha": 16, "target_modules": list(TARGETS), **options}
        model: Any = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(parameter, std=spread) if spread else torch.nn.init.zeros_(parameter)
        model.save_pretrained(directory)
        (directory / "README.md").unlink(missing_ok=True)
        write_manifest(directory, name=name, base_sha256=tiny_base_sha256, rank=rank)
        return directory

    return write


def write_manifest(directory: Path, *, name: str, base_sha256: str, rank: int) -> None:
    manifest = AdapterManifest(
        name=name,
        role=AdapterName.parse(name).role,
        base_model="tiny",
        base_sha256=base_sha256,
        rank=rank,
        target_modules=TARGETS,
        files={file: sha256_file(directory / file) for file in (CONFIG_FILE, WEIGHTS_FILE)},
    )
    (directory / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2))


@pytest.fixture
def make_engine(tiny_model_dir: Path, tiny_base_sha256: str) -> Iterator[Callable[..., InProcessEngine]]:
    """An engine of the tiny model with any option changed."""
    engines: list[InProcessEngine] = []

    def make(**options: Any) -> InProcessEngine:
        settings: dict[str, Any] = {"max_adapters": 4, "max_batch": 16, "threads": 1, **options}
        model_dir = settings.pop("model_dir", tiny_model_dir)
        engines.append(InProcessEngine(model_dir, settings.pop("base_sha256", tiny_base_sha256), **settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
