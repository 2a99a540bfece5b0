"""Adapters on disk: safetensors, config and a manifest with digests. Written once, never changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from negotiation.adapter import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest, AdapterName
from training.config import AdapterSettings


@dataclass(frozen=True)
class BaseModelRef:
    """The base model that adapters belong to: its directory, public name and the sha256 of its weights."""

    path: Path
    name: str
    sha256: str


def lora_config(settings: AdapterSettings) -> LoraConfig:
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(settings.target_modules),
        task_type="CAUSAL_LM",
    )


def load_base(base: BaseModelRef) -> torch.nn.Module:
    """The base model in float32, weights checked against the reference's digest. Raises ValueError."""
    digest = hashlib.sha256((base.path / "model.safetensors").read_bytes()).hexdigest()
    if digest != base.sha256:
        raise ValueError(f"base model {base.name} has sha256 {digest}, expected {base.sha256}: restore its files")
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        base.path, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model


def export_adapter(
    model: PeftModel,
    adapter_name_in_peft: str,
    name: AdapterName,
    base_model: str,
    base_sha256: str,
    directory: Path,
) -> AdapterManifest:
    """Write one adapter of ``model`` to ``directory`` (which must not exist) in a single rename.

    Raises FileExistsError: a version is never written twice.
    """
    if directory.exists():
        raise FileExistsError(f"{directory} exists: adapter versions are immutable, choose a new version")
    staging = directory.with_name(f".{directory.name}.{os.getpid()}")
    if staging.exists():
        shutil.rmtree(staging)
    model.save_pretrained(str(staging), selected_adapters=[adapter_name_in_peft], safe_serialization=True)
    nested = staging / adapter_name_in_peft
    source = nested if nested.is_dir() else staging
    config = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8"))
    # The path of this machine means nothing elsewhere; the digest in the manifest is what binds the base.
    config["base_model_name_or_path"] = base_model
    final = directory.with_name(f".{directory.name}.{os.getpid()}.final")
    if final.exists():
        shutil.rmtree(final)
    final.mkdir(parents=True)
    shutil.copyfile(source / WEIGHTS_FILE, final / WEIGHTS_FILE)
    (final / CONFIG_FILE).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    manifest = AdapterManifest(
        name=str(name),
        role=name.role,
        base_model=base_model,
        base_sha256=base_sha256,
        rank=int(config["r"]),
        target_modules=tuple(sorted(config["target_modules"])),
        files={file: file_sha256(final / file) for file in (WEIGHTS_FILE, CONFIG_FILE)},
    )
    (final / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(staging)
    final.rename(directory)
    return manifest


def initialise_adapter(
    base: BaseModelRef, name: AdapterName, settings: AdapterSettings, seed: int, directory: Path
) -> AdapterManifest:
    """A fresh adapter that changes nothing yet (B is zero): the version that serving starts from."""
    torch.manual_seed(seed)
    model = get_peft_model(load_base(base), lora_config(settings))
    return export_adapter(model, "default", name, base.name, base.sha256, directory)


def load_weights(model: PeftModel, adapter_name_in_peft: str, directory: Path, base: BaseModelRef) -> None:
    """Copy an exported adapter's weights into an existing adapter of the same shape, scale and base.

    Raises ValueError for one that does not fit, FileNotFoundError for a folder that holds none.
    """
    from peft import set_peft_model_state_dict

    manifest = AdapterManifest.model_validate_json((directory / MANIFEST_FILE).read_bytes())
    if manifest.base_sha256 != base.sha256:
        raise ValueError(
            f"adapter {directory} belongs to the base model {manifest.base_model!r} with sha256 "
            f"{manifest.base_sha256[:12]}..., this is {base.name!r} with {base.sha256[:12]}...: train on that base, "
            "or start from an adapter of this one"
        )

    stored = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    asked: Any = model.peft_config[adapter_name_in_peft].to_dict()
    # Tensors alone would not tell: fewer modules load by halves, and another alpha scales the same weights anew.
    for key in ("r", "lora_alpha", "target_modules"):
        there, here = (sorted(c[key]) if key == "target_modules" else c[key] for c in (stored, asked))
        if there != here:
            raise ValueError(
                f"adapter {directory} does not fit: its {key} is {there}, the settings ask for {here}: "
                "set them alike or start from a fresh adapter"
            )
    result: Any = set_peft_model_state_dict(
        model, load_file(directory / WEIGHTS_FILE), adapter_name=adapter_name_in_peft
    )
    if result.unexpected_keys:
        raise ValueError(f"adapter {directory} does not fit: unexpected weights {result.unexpected_keys[:3]}")


def file_sha256(path: Path) -> str:
    """Digest of a file's bytes, lower-case hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
