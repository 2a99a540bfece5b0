"""Fixtures that several packages' tests need."""

from __future__ import annotations

from pathlib import Path

import pytest

from negotiation.catalogue import NAMES, scenario_named
from negotiation.roles import Role


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of some 0.1M parameters with our tokenizer and chat template, as a model directory."""
    from training.base_model import TINY, create_model, save_model, train_tokenizer

    scenarios = [scenario_named(name) for name in NAMES]
    texts = [s.system_prompt(role, s.generate(seed)) for s in scenarios for seed in range(150) for role in Role]
    tokenizer = train_tokenizer(texts, TINY.vocabulary, TINY.context_length)
    directory = tmp_path_factory.mktemp("tiny-model")
    save_model(create_model(tokenizer, TINY, seed=0), tokenizer, directory)
    return directory
