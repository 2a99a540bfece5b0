"""The base model is found, and a damaged or unsafe one is refused."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from sparring.models import DIGEST_FILE, BaseModelError, resolve_base_model


@pytest.fixture
def model(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def test_a_directory_is_found_with_the_digest_of_its_weights(model: Path) -> None:
    found = resolve_base_model(str(model))
    assert found.path == model
    assert found.sha256 == hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


def test_a_digest_beside_the_weights_is_checked(model: Path) -> None:
    digest = resolve_base_model(str(model)).sha256
    (model / DIGEST_FILE).write_text(digest + "\n")
    assert resolve_base_model(str(model)).sha256 == digest
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(BaseModelError, match="damaged or replaced"):
        resolve_base_model(str(model))


def test_pickled_weights_are_refused(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(BaseModelError, match="only safetensors"):
        resolve_base_model(str(model))


def test_a_directory_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match=r"config\.json"):
        resolve_base_model(str(tmp_path))


@pytest.mark.parametrize("reference", ["./absent", "/no/such/model", "~/no-such-model"])
def test_a_path_that_is_not_there_is_refused(reference: str) -> None:
    with pytest.raises(BaseModelError, match="no such directory"):
        resolve_base_model(reference)


def test_a_hub_id_without_a_hub_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BaseModelError, match="name a directory, or `bundled`"):
        resolve_base_model("somebody/some-model")


def test_the_bundled_model_matches_its_digest_and_is_small() -> None:
    found = resolve_base_model("bundled")
    assert found.name == "bundled"
    assert (found.path / DIGEST_FILE).read_text().strip() == found.sha256
    assert sum(file.stat().st_size for file in found.path.iterdir()) <= 10_000_000
