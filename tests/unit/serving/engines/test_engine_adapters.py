"""Adapters in the in-process engine: each answers as PEFT would, none disturbs another, names never move."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from negotiation.generation import BASE, AdapterNotLoaded, GenerationRequest, GenerationResult, Sampling
from serving.adapters import AdapterRejected, sha256_file
from serving.engines import AdapterSlotsFull
from serving.engines.in_process import InProcessEngine

Write = Callable[..., Path]
Make = Callable[..., InProcessEngine]
GREEDY = Sampling(max_tokens=8, temperature=0.0)
PROMPT = (5, 9, 33, 101, 7, 250)


def ask(engine: InProcessEngine, *names: str, sampling: Sampling = GREEDY) -> list[GenerationResult]:
    return engine.generate([GenerationRequest(PROMPT, name, sampling) for name in names])


def relist(directory: Path) -> None:
    """Make the manifest agree with the files again."""
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"] = {file: sha256_file(directory / file) for file in manifest["files"]}
    path.write_text(json.dumps(manifest))


def unmerged_logprobs(model_dir: Path, adapter: Path, result: GenerationResult) -> list[float]:
    """What a trainer computes: PEFT's forward pass with the low-rank path beside the frozen layer."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model: Any = PeftModel.from_pretrained(base, adapter).eval()
    ids = torch.tensor([[*PROMPT, *result.token_ids]])
    with torch.inference_mode():
        scores = model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return [float(scores[place, token]) for place, token in enumerate(result.token_ids)]


@pytest.fixture(params=[10**9, 0], ids=["merged", "beside"])
def merge_below(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_logprobs_are_the_trainers(
    make_engine: Make, write_adapter: Write, tiny_model_dir: Path, merge_below: int
) -> None:
    engine = make_engine(merge_below=merge_below)
    directories = {name: write_adapter(name, seed=seed) for seed, name in enumerate(["agent@1", "counterpart@1"])}
    for name, directory in directories.items():
        engine.load_adapter(name, directory)
    results = ask(engine, *directories, sampling=Sampling(max_tokens=20, seed=1))
    for directory, result in zip(directories.values(), results, strict=True):
        assert result.logprobs == pytest.approx(unmerged_logprobs(tiny_model_dir, directory, result), abs=1e-4)


def test_adapters_in_one_call_do_not_mix(make_engine: Make, write_adapter: Write, merge_below: int) -> None:
    engine = make_engine(merge_below=merge_below)
    [before] = ask(engine, BASE)
    for seed, name in enumerate(["agent@1", "agent@2", "counterpart@1"], start=1):
        engine.load_adapter(name, write_adapter(name, seed=seed))
    names = ["agent@2", BASE, "agent@1", "counterpart@1", "agent@2", "agent@1", BASE]
    together = ask(engine, *names)
    assert len({result.token_ids for result in together}) == 4
    for name, result in zip(names, together, strict=True):
        assert ask(engine, name)[0].token_ids == result.token_ids
    engine.unload_adapter("agent@1")
    assert ask(engine, BASE, "agent@2") == [before, ask(engine, "agent@2")[0]]
    for name in ("agent@2", "counterpart@1"):
        engine.unload_adapter(name)
    assert engine.loaded_adapters() == frozenset()
    assert ask(engine, BASE)[0].token_ids == before.token_ids


def test_base_weights_survive_loads(make_engine: Make, write_adapter: Write, merge_below: int) -> None:
    engine = make_engine(merge_below=merge_below)
    with engine._weights.active(BASE) as base:
        before = {key: value.clone() for key, value in base.state_dict().items()}
    engine.load_adapter("agent@1", write_adapter("agent@1"))
    engine.unload_adapter("agent@1")
    with engine._weights.active(BASE) as base:
        after = base.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_fresh_adapter_answers_like_the_base(make_engine: Make, write_adapter: Write, merge_below: int) -> None:
    engine = make_engine(merge_below=merge_below)
    engine.load_adapter("agent@1", write_adapter("agent@1", spread=0.0))
    base, fresh = ask(engine, BASE, "agent@1")
    assert base.token_ids == fresh.token_ids
    assert engine.fingerprint("agent@1") == engine.fingerprint(BASE)


def test_fingerprints_tell_adapters_apart_and_last(make_engine: Make, write_adapter: Write, merge_below: int) -> None:
    engine, other = make_engine(merge_below=merge_below), make_engine()
    first, second = (write_adapter(name, seed=seed) for seed, name in enumerate(["agent@1", "agent@2"]))
    engine.load_adapter("agent@1", first)
    before = engine.fingerprint("agent@1")
    engine.load_adapter("agent@2", second)
    assert len({before, engine.fingerprint("agent@2"), engine.fingerprint(BASE)}) == 3
    assert engine.fingerprint("agent@1") == before
    other.load_adapter("agent@2", second)
    assert other.fingerprint("agent@2") == engine.fingerprint("agent@2")


@pytest.mark.parametrize("damage", ["other layers", "other size"])
def test_an_adapter_that_fits_another_model_is_refused(
    make_engine: Make, write_adapter: Write, merge_below: int, damage: str
) -> None:
    """PEFT would leave B at zero and serve the base in disguise, or stop half way through changing the model."""
    from safetensors.torch import load_file, save_file

    directory = write_adapter("agent@1")
    weights = directory / "adapter_model.safetensors"
    tensors = load_file(weights)
    if damage == "other layers":
        tensors = {key.replace("layers.", "blocks."): value for key, value in tensors.items()}
    else:
        tensors = {k: torch.cat([v, v], dim=int("lora_A" in k)) if "q_proj" in k else v for k, v in tensors.items()}
    save_file(tensors, weights)
    relist(directory)
    engine = make_engine(merge_below=merge_below)
    with pytest.raises(AdapterRejected, match="agent@1 does not fit"):
        engine.load_adapter("agent@1", directory)
    assert engine.loaded_adapters() == frozenset()
    with pytest.raises(AdapterNotLoaded):
        ask(engine, "agent@1")
    assert ask(engine, BASE)


@pytest.mark.parametrize("name", ["../agent@1", "agent", "base", "agent@0", "/etc", "agent@1/..", ""])
def test_names_outside_the_list_are_refused(make_engine: Make, write_adapter: Write, name: str) -> None:
    with pytest.raises(ValueError, match="not of the form"):
        make_engine().load_adapter(name, write_adapter("agent@1"))


def test_a_name_is_loaded_once(make_engine: Make, write_adapter: Write) -> None:
    engine = make_engine()
    directory = write_adapter("agent@1")
    engine.load_adapter("agent@1", directory)
    with pytest.raises(ValueError, match="loaded already"):
        engine.load_adapter("agent@1", directory)
    with pytest.raises(AdapterRejected, match=r"holds agent@1, not agent@2"):
        engine.load_adapter("agent@2", directory)


def test_limit_of_adapters_names_limit_and_remedy(make_engine: Make, write_adapter: Write) -> None:
    engine = make_engine(max_adapters=1)
    engine.load_adapter("agent@1", write_adapter("agent@1"))
    with pytest.raises(AdapterSlotsFull, match=r"limit is 1.*unload.*max_adapters"):
        engine.load_adapter("agent@2", write_adapter("agent@2"))
    engine.unload_adapter("agent@1")
    engine.load_adapter("agent@2", write_adapter("agent@2"))


def test_unloading_what_is_not_there(make_engine: Make) -> None:
    engine = make_engine()
    for name in ("agent@1", BASE):
        with pytest.raises(AdapterNotLoaded, match=name):
            engine.unload_adapter(name)


def test_a_name_that_comes_back_does_not_meet_its_old_prefixes(
    make_engine: Make, write_adapter: Write, tmp_path: Path
) -> None:
    """Names should never be used again; if one is, its cached attention must not be."""
    engine, fresh = make_engine(), make_engine()
    engine.load_adapter("agent@1", write_adapter("agent@1", seed=1))
    [first] = ask(engine, "agent@1")
    assert engine._prefixes is not None
    assert engine._prefixes.held_bytes > 0
    engine.unload_adapter("agent@1")
    assert engine._prefixes.held_bytes == 0
    shutil.rmtree(tmp_path / "adapters" / "agent@1")
    directory = write_adapter("agent@1", seed=2)
    longer = GenerationRequest(PROMPT + first.token_ids + (1, 2), "agent@1", GREEDY)
    engine.load_adapter("agent@1", directory)
    fresh.load_adapter("agent@1", directory)
    [here], [there] = engine.generate([longer]), fresh.generate([longer])
    assert here.token_ids == there.token_ids
    assert here.logprobs == pytest.approx(there.logprobs, abs=1e-5)


async def test_swaps_under_load_never_answer_with_another_adapter(
    make_engine: Make, write_adapter: Write, merge_below: int
) -> None:
    engine = make_engine(max_adapters=4, max_batch=8, merge_below=merge_below)
    names = [f"agent@{version}" for version in range(1, 7)]
    directories = {name: write_adapter(name, seed=version) for version, name in enumerate(names)}
    expected = {}
    for name, directory in directories.items():
        engine.load_adapter(name, directory)
        expected[name] = ask(engine, name)[0].token_ids
        engine.unload_adapter(name)
    assert len(set(expected.values())) == len(names)
    engine.load_adapter(names[0], directories[names[0]])
    swapping, errors = threading.Event(), list[Exception]()

    def swap() -> None:
        try:
            for old, new in [*itertools.pairwise(names), (names[-1], names[0])]:
                engine.load_adapter(new, directories[new])
                engine.unload_adapter(old)
        except Exception as error:
            errors.append(error)
        finally:
            swapping.set()

    answered, refused = 0, 0

    async def talk() -> None:
        nonlocal answered, refused
        while not swapping.is_set():
            for name in (*engine.loaded_adapters(), BASE):
                try:
                    result = await engine.generate_async(GenerationRequest(PROMPT, name, GREEDY))
                except AdapterNotLoaded:
                    refused += 1
                    continue
                answered += 1
                if name != BASE:
                    assert result.token_ids == expected[name]

    thread = threading.Thread(target=swap)
    thread.start()
    await asyncio.gather(*[talk() for _ in range(6)])
    thread.join()
    assert not errors
    assert answered > refused
    assert engine.loaded_adapters() == {names[0]}


def test_verified_files_only(make_engine: Make, write_adapter: Write) -> None:
    directory = write_adapter("agent@1")
    weights = directory / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    assert sha256_file(weights)
    with pytest.raises(AdapterRejected, match="sha256"):
        make_engine().load_adapter("agent@1", directory)
