"""Adapters on disk: exact round trips, written once, accepted by what serves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file

from negotiation.adapter import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, AdapterName
from negotiation.generation import BASE, GenerationRequest, Sampling
from negotiation.roles import Role
from serving.adapters import AdapterRejected, verify_adapter
from training.artifacts import (
    BaseModelRef,
    export_adapter,
    initialise_adapter,
    load_base,
    load_weights,
    lora_config,
)
from training.config import AdapterSettings

NAME = AdapterName(role=Role.AGENT, version=7)
SETTINGS = AdapterSettings(rank=4, alpha=8)


def model_with_adapter(base: BaseModelRef, settings: AdapterSettings = SETTINGS, spread: float = 0.3) -> PeftModel:
    torch.manual_seed(1)
    model = get_peft_model(load_base(base), lora_config(settings))
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=spread)
    return model


def adapter_bytes(model: PeftModel) -> dict[str, bytes]:
    return {name: p.detach().numpy().tobytes() for name, p in model.named_parameters() if ".lora_" in name}


def export(model: PeftModel, base: BaseModelRef, directory: Path) -> Any:
    return export_adapter(model, "default", NAME, base.name, base.sha256, directory)


def test_an_exported_adapter_loads_back_bit_for_bit(base: BaseModelRef, tmp_path: Path) -> None:
    model, other = model_with_adapter(base), model_with_adapter(base, spread=0.7)
    assert adapter_bytes(model) != adapter_bytes(other)
    export(model, base, tmp_path / "agent@7")
    load_weights(other, "default", tmp_path / "agent@7", base)
    assert adapter_bytes(model) == adapter_bytes(other)
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, other(input_ids=ids).logits)


def test_serving_accepts_what_training_exports(base: BaseModelRef, engine: Any, tmp_path: Path) -> None:
    manifest = export(model_with_adapter(base), base, tmp_path / "agent@7")
    assert verify_adapter(tmp_path / "agent@7", base_sha256=base.sha256, max_rank=4) == manifest
    assert (manifest.name, manifest.role, manifest.rank) == ("agent@7", Role.AGENT, 4)
    engine.load_adapter("agent@7", tmp_path / "agent@7")
    prompts = [
        GenerationRequest((5, 6, 7), name, Sampling(max_tokens=4, temperature=0)) for name in (BASE, "agent@7")
    ]
    base_result, adapted = engine.generate(prompts)
    assert base_result.logprobs != adapted.logprobs


def test_an_adapter_directory_holds_three_files_and_no_path_of_this_machine(
    base: BaseModelRef, tmp_path: Path
) -> None:
    export(model_with_adapter(base), base, tmp_path / "agent@7")
    directory = tmp_path / "agent@7"
    assert {path.name for path in directory.iterdir()} == {CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE}
    assert [path.name for path in tmp_path.iterdir()] == ["agent@7"]
    for file in (CONFIG_FILE, MANIFEST_FILE):
        assert str(base.path) not in (directory / file).read_text()
    assert json.loads((directory / CONFIG_FILE).read_text())["base_model_name_or_path"] == base.name


def test_a_version_is_never_written_twice(base: BaseModelRef, tmp_path: Path) -> None:
    model = model_with_adapter(base)
    export(model, base, tmp_path / "agent@7")
    before = (tmp_path / "agent@7" / WEIGHTS_FILE).read_bytes()
    with pytest.raises(FileExistsError, match="immutable, choose a new version"):
        export(model_with_adapter(base, spread=0.9), base, tmp_path / "agent@7")
    assert (tmp_path / "agent@7" / WEIGHTS_FILE).read_bytes() == before


@pytest.mark.parametrize("file", [WEIGHTS_FILE, CONFIG_FILE])
def test_any_change_after_export_breaks_the_digest(base: BaseModelRef, tmp_path: Path, file: str) -> None:
    export(model_with_adapter(base), base, tmp_path / "agent@7")
    path = tmp_path / "agent@7" / file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(AdapterRejected, match="sha256"):
        verify_adapter(tmp_path / "agent@7", base_sha256=base.sha256, max_rank=4)


def test_an_initial_adapter_changes_nothing_and_comes_from_its_seed(base: BaseModelRef, tmp_path: Path) -> None:
    digests = []
    for folder, seed in (("one", 3), ("two", 3), ("three", 4)):
        manifest = initialise_adapter(base, NAME, SETTINGS, seed, tmp_path / folder)
        digests.append(manifest.files[WEIGHTS_FILE])
    assert digests[0] == digests[1] != digests[2]
    weights = load_file(tmp_path / "one" / WEIGHTS_FILE)
    assert all(torch.count_nonzero(t) == 0 for key, t in weights.items() if ".lora_B." in key)
    assert any(torch.count_nonzero(t) for key, t in weights.items() if ".lora_A." in key)
    model = get_peft_model(load_base(base), lora_config(SETTINGS))
    load_weights(model, "default", tmp_path / "one", base)
    ids = torch.arange(20)[None]
    with torch.inference_mode(), model.disable_adapter():
        plain = model(input_ids=ids).logits
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, plain)


def test_a_base_model_that_is_not_what_it_says_is_refused(base: BaseModelRef) -> None:
    with pytest.raises(ValueError, match=f"base model tiny has sha256 {base.sha256}, expected {'0' * 64}"):
        load_base(BaseModelRef(base.path, base.name, "0" * 64))


def test_weights_of_another_rank_do_not_load(base: BaseModelRef, tmp_path: Path) -> None:
    export(model_with_adapter(base), base, tmp_path / "agent@7")
    with pytest.raises(ValueError, match=r"its r is 4, the settings ask for 8"):
        load_weights(
            model_with_adapter(base, AdapterSettings(rank=8, alpha=8)), "default", tmp_path / "agent@7", base
        )


@pytest.mark.parametrize("exported_has_more", [True, False])
def test_an_adapter_of_other_modules_does_not_load_by_halves(
    base: BaseModelRef, tmp_path: Path, exported_has_more: bool
) -> None:
    some = AdapterSettings(rank=4, alpha=8, target_modules=("q_proj", "v_proj"))
    there, here = (SETTINGS, some) if exported_has_more else (some, SETTINGS)
    export(model_with_adapter(base, there), base, tmp_path / "agent@7")
    with pytest.raises(ValueError, match="does not fit: its target_modules"):
        load_weights(model_with_adapter(base, here), "default", tmp_path / "agent@7", base)


def test_an_adapter_of_another_scale_does_not_load(base: BaseModelRef, tmp_path: Path) -> None:
    """Weights trained at alpha / rank 2 mean something else at 8, though every tensor fits."""
    export(model_with_adapter(base), base, tmp_path / "agent@7")
    with pytest.raises(ValueError, match=r"its lora_alpha is 8, the settings ask for 32"):
        load_weights(
            model_with_adapter(base, AdapterSettings(rank=4, alpha=32)), "default", tmp_path / "agent@7", base
        )
