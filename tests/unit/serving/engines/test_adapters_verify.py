"""Every way an adapter directory can be wrong is refused before anything of it is loaded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.adapters import AdapterRejected, sha256_file, verify_adapter

Write = Callable[..., Path]
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


def edit_manifest(directory: Path, **changes: Any) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def relist(directory: Path, *more: str) -> None:
    """Make the manifest's digests agree with the files again."""
    listed = [*json.loads((directory / "manifest.json").read_text())["files"], *more]
    edit_manifest(directory, files={file: sha256_file(directory / file) for file in listed})


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    relist(directory)


def edit_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(directory / WEIGHTS)), directory / WEIGHTS)
    relist(directory)


@pytest.fixture
def adapter(write_adapter: Write) -> Path:
    return write_adapter("agent@7")


@pytest.fixture
def check(tiny_base_sha256: str) -> Callable[[Path], Any]:
    return lambda directory: verify_adapter(directory, base_sha256=tiny_base_sha256, max_rank=16)


def test_a_good_one_passes(adapter: Path, check: Callable[[Path], Any]) -> None:
    manifest = check(adapter)
    assert (manifest.name, manifest.rank) == ("agent@7", 8)
    (adapter / "README.md").write_text("notes")
    relist(adapter, "README.md")
    assert check(adapter).name == "agent@7"


def drop_manifest(d: Path) -> None:
    (d / "manifest.json").unlink()


def unlisted(name: str) -> Callable[[Path], object]:
    return lambda d: (d / name).write_bytes(pickle.dumps({"weights": 1}))


def listed_pickle(d: Path) -> None:
    unlisted("adapter_model.bin")(d)
    relist(d, "adapter_model.bin")


def link_weights(d: Path) -> None:
    (d / WEIGHTS).rename(d.parent / "elsewhere.safetensors")
    (d / WEIGHTS).symlink_to(d.parent / "elsewhere.safetensors")


def list_outside(d: Path) -> None:
    (d.parent / "outside.json").write_text("{}")
    files = json.loads((d / "manifest.json").read_text())["files"]
    edit_manifest(d, files=files | {"../outside.json": sha256_file(d.parent / "outside.json")})


def flip_byte(d: Path) -> None:
    raw = bytearray((d / WEIGHTS).read_bytes())
    raw[-1] ^= 1
    (d / WEIGHTS).write_bytes(raw)


def truncate(d: Path) -> None:
    (d / WEIGHTS).write_bytes((d / WEIGHTS).read_bytes()[:100])
    relist(d)


def forget_config(d: Path) -> None:
    files = json.loads((d / "manifest.json").read_text())["files"]
    edit_manifest(d, files={WEIGHTS: files[WEIGHTS]})


def poison(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    next(iter(tensors.values())).view(-1)[3] = float("nan")
    return tensors


def lose_one(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tensors.pop(next(iter(tensors)))
    return tensors


def add_base_weight(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return tensors | {"base_model.model.model.embed_tokens.weight": torch.zeros(4, 4)}


def rename_module(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key.replace("q_proj", "gate"): value for key, value in tensors.items()}


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (drop_manifest, "no manifest.json"),
    "manifest is not JSON": (lambda d: (d / "manifest.json").write_text("{"), "manifest.json"),
    "manifest has unknown key": (lambda d: edit_manifest(d, extra=1), "extra"),
    "newer schema": (lambda d: edit_manifest(d, schema_version=2), "schema_version is 2.*upgrade"),
    "name with a path": (lambda d: edit_manifest(d, name="../agent@7"), "not of the form"),
    "role and name differ": (lambda d: edit_manifest(d, role="counterpart"), "role counterpart"),
    "other base": (lambda d: edit_manifest(d, base_sha256="ab" * 32), "ababababab"),
    "rank over the limit": (lambda d: edit_manifest(d, rank=17), "rank 17, the limit is 16"),
    "rank differs from config": (lambda d: edit_manifest(d, rank=4), r"rank \[8\].*says 4"),
    "rank pattern": (lambda d: edit_config(d, rank_pattern={"q_proj": 99}), "99"),
    "modules differ": (lambda d: edit_manifest(d, target_modules=["q_proj"]), "targets.*q_proj"),
    "modules by pattern": (lambda d: edit_config(d, target_modules=".*"), "targets"),
    "no LoRA": (lambda d: edit_config(d, peft_type="PREFIX_TUNING"), "PREFIX_TUNING"),
    "config is a list": (lambda d: ((d / CONFIG).write_text("[]"), relist(d)), "list"),
    "config is not JSON": (lambda d: ((d / CONFIG).write_text("{"), relist(d)), "not JSON"),
    "DoRA": (lambda d: edit_config(d, use_dora=True), "use_dora"),
    "imports a module": (lambda d: edit_config(d, megatron_config={"a": 1}), "megatron_config"),
    "bias": (lambda d: edit_config(d, bias="all"), "bias 'all'"),
    "PiSSA": (lambda d: edit_config(d, init_lora_weights="pissa"), "pissa"),
    "pickle": (unlisted("training_args.bin"), "training_args.bin.*pickle"),
    "listed pickle": (listed_pickle, "adapter_model.bin.*pickle"),
    "torch file": (unlisted("optimizer.pt"), "optimizer.pt"),
    "pkl": (unlisted("x.pkl"), "x.pkl"),
    "folder": (lambda d: (d / "more").mkdir(), "more"),
    "unlisted file": (lambda d: (d / "tokenizer.json").write_text("{}"), "tokenizer.json is not listed"),
    "config not listed": (forget_config, CONFIG),
    "missing file": (lambda d: (d / WEIGHTS).unlink(), "missing"),
    "link": (link_weights, "symbolic link"),
    "outside the folder": (list_outside, r"'../outside.json' is not a plain file name"),
    "one bit flipped": (flip_byte, "sha256"),
    "cut off": (truncate, "cannot be read"),
    "NaN": (lambda d: edit_weights(d, poison), "NaN"),
    "half a pair": (lambda d: edit_weights(d, lose_one), "partner"),
    "no tensors": (lambda d: edit_weights(d, lambda _: {}), "no tensors"),
    "base weights inside": (lambda d: edit_weights(d, add_base_weight), "embed_tokens"),
    "another module": (lambda d: edit_weights(d, rename_module), "outside"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_one_is_refused_with_its_reason(adapter: Path, check: Callable[[Path], Any], case: str) -> None:
    damage, words = BROKEN[case]
    damage(adapter)
    with pytest.raises(AdapterRejected, match=f"(?s){words}"):
        check(adapter)


def test_not_a_directory(tmp_path: Path, check: Callable[[Path], Any]) -> None:
    with pytest.raises(AdapterRejected, match="not a directory"):
        check(tmp_path / "nothing")
