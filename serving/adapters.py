"""Checks an adapter directory before any of it reaches a model.

An adapter comes from another process, another machine or another person. Whatever could run code (pickles),
point elsewhere (symlinks, ``..``), be another file than was signed off (sha256), belong to another base, or
fail every request once loaded (rank, modules, NaN) is refused here with the value, the limit and the remedy.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from negotiation.adapter import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest, AdapterName

_ALLOWED_SUFFIXES = (".safetensors", ".json", ".md")
_UNSUPPORTED = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
)
"""LoRA variants that add more than A and B matrices; ``megatron_config`` even imports a module it names."""


class AdapterRejected(ValueError):
    """An adapter directory that must not be loaded; the message says why and what to do."""


def sha256_file(path: Path) -> str:
    """Digest of a file's bytes, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_adapter(directory: Path, *, base_sha256: str, max_rank: int) -> AdapterManifest:
    """Check everything that can be checked without the base model. Raises AdapterRejected."""
    if not directory.is_dir():
        raise AdapterRejected(f"{directory} is not a directory; an adapter is a directory with {MANIFEST_FILE}")
    manifest = _read_manifest(directory)
    _check_names(manifest)
    if manifest.base_sha256 != base_sha256:
        raise AdapterRejected(
            f"{manifest.name} was trained on a base with sha256 {manifest.base_sha256[:12]}…, this one's is "
            f"{base_sha256[:12]}…; train it on {manifest.base_model!r}'s present weights or serve that base"
        )
    if manifest.rank > max_rank:
        raise AdapterRejected(
            f"{manifest.name} has rank {manifest.rank}, the limit is {max_rank}; raise the engine's "
            "max_adapter_rank or train a smaller one"
        )
    _check_files(directory, manifest)
    _check_config(directory, manifest)
    _check_weights(directory, manifest)
    return manifest


def _read_manifest(directory: Path) -> AdapterManifest:
    path = directory / MANIFEST_FILE
    if path.is_symlink() or not path.is_file():
        raise AdapterRejected(f"{directory} has no {MANIFEST_FILE}; export the adapter again")
    try:
        return AdapterManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise AdapterRejected(f"{path}: {where}: {first['msg']}; export the adapter again") from error


def _check_names(manifest: AdapterManifest) -> None:
    if manifest.schema_version != 1:
        raise AdapterRejected(
            f"{manifest.name}: manifest schema_version is {manifest.schema_version}, this release reads 1; upgrade"
        )
    try:
        name = AdapterName.parse(manifest.name)
    except ValueError as error:
        raise AdapterRejected(f"manifest: {error}; export the adapter under such a name") from error
    if name.role is not manifest.role:
        raise AdapterRejected(f"manifest says role {manifest.role}, but the name is {manifest.name}; export it again")


def _check_files(directory: Path, manifest: AdapterManifest) -> None:
    for required in (CONFIG_FILE, WEIGHTS_FILE):
        if required not in manifest.files:
            raise AdapterRejected(f"{manifest.name}: the manifest does not list {required}; export the adapter again")
    for entry in sorted(directory.iterdir()):
        if entry.suffix not in _ALLOWED_SUFFIXES:
            raise AdapterRejected(
                f"{manifest.name}: {entry.name} is not allowed in an adapter (only "
                f"{', '.join(_ALLOWED_SUFFIXES)}: a pickle can run code); save with safetensors and remove it"
            )
        if entry.name != MANIFEST_FILE and entry.name not in manifest.files:
            raise AdapterRejected(f"{manifest.name}: {entry.name} is not listed in the manifest; remove it")
    for file, digest in manifest.files.items():
        path = directory / file
        # Compared as text: Path("a/../b").name would hide the way there.
        if file in {"", ".", ".."} or "/" in file or "\\" in file or "\0" in file:
            raise AdapterRejected(f"{manifest.name}: listed file {file!r} is not a plain file name; export it again")
        if path.is_symlink():
            raise AdapterRejected(f"{manifest.name}: {file} is a symbolic link; put the file itself there")
        if not path.is_file():
            raise AdapterRejected(f"{manifest.name}: listed file {file} is missing; fetch the adapter again")
        actual = sha256_file(path)
        if actual != digest:
            raise AdapterRejected(
                f"{manifest.name}: {file} has sha256 {actual[:12]}…, the manifest says {digest[:12]}…; "
                "fetch the adapter again, or export it again if it was edited"
            )


def _check_config(directory: Path, manifest: AdapterManifest) -> None:
    name = manifest.name
    try:
        config: Any = json.loads((directory / CONFIG_FILE).read_bytes())
    except ValueError as error:
        raise AdapterRejected(f"{name}: {CONFIG_FILE} is not JSON ({error}); export the adapter again") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise AdapterRejected(f"{name}: {CONFIG_FILE} has peft_type {kind!r}, only LORA is served")
    for option in _UNSUPPORTED:
        if config.get(option):
            raise AdapterRejected(f"{name}: {CONFIG_FILE} sets {option}, which is not served; train plain LoRA")
    if config.get("bias", "none") != "none":
        raise AdapterRejected(
            f"{name}: {CONFIG_FILE} has bias {config['bias']!r}, not served; train with bias 'none'"
        )
    if config.get("init_lora_weights", True) not in (True, False, "gaussian"):
        raise AdapterRejected(
            f"{name}: init_lora_weights {config['init_lora_weights']!r} changes the base weights; convert the "
            "adapter to plain LoRA"
        )
    rank = config.get("r")
    ranks = {rank, *(config.get("rank_pattern") or {}).values()}
    if ranks != {manifest.rank}:
        raise AdapterRejected(
            f"{name}: {CONFIG_FILE} has rank {sorted(ranks, key=str)}, the manifest says {manifest.rank}; they must "
            "agree. Export the adapter again"
        )
    modules = config.get("target_modules")
    if not isinstance(modules, list) or set(modules) != set(manifest.target_modules):
        raise AdapterRejected(
            f"{name}: {CONFIG_FILE} targets {modules}, the manifest says {sorted(manifest.target_modules)}; they "
            "must agree. Export the adapter again"
        )


def _check_weights(directory: Path, manifest: AdapterManifest) -> None:
    name = manifest.name
    try:
        with safe_open(directory / WEIGHTS_FILE, framework="pt") as stored:
            tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise AdapterRejected(f"{name}: {WEIGHTS_FILE} cannot be read ({error}); export the adapter again") from error
    if not tensors:
        raise AdapterRejected(f"{name}: {WEIGHTS_FILE} holds no tensors; export the adapter again")
    for key, tensor in tensors.items():
        _check_tensor(name, key, tensor, manifest)
    partners = {key.replace(".lora_A.", ".lora_B.") for key in tensors if ".lora_A." in key}
    lonely = partners ^ {key for key in tensors if ".lora_B." in key}
    if lonely:
        raise AdapterRejected(f"{name}: {sorted(lonely)[0]} has no partner matrix; export the adapter again")


def _check_tensor(name: str, key: str, tensor: torch.Tensor, manifest: AdapterManifest) -> None:
    module, _, kind = key.removesuffix(".weight").rpartition(".")
    if kind not in {"lora_A", "lora_B"} or tensor.dim() != 2:
        raise AdapterRejected(f"{name}: tensor {key} is not a LoRA A or B matrix; train plain LoRA")
    if module.rpartition(".")[2] not in {target.rpartition(".")[2] for target in manifest.target_modules}:
        raise AdapterRejected(
            f"{name}: tensor {key} is for a module outside {sorted(manifest.target_modules)}; export it again"
        )
    rank = tensor.shape[0 if kind == "lora_A" else 1]
    if rank != manifest.rank:
        raise AdapterRejected(f"{name}: tensor {key} has rank {rank}, the manifest says {manifest.rank}")
    if not torch.isfinite(tensor).all():
        raise AdapterRejected(
            f"{name}: tensor {key} holds NaN or infinity; the training run diverged, train it again"
        )
