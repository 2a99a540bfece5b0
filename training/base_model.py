"""Makes the tokenizer and the small Llama that the project ships, from nothing.

A byte-level BPE tokenizer (no text is unknown to it) with a chat template that only ever appends, and a
Llama of about one million parameters. Training it is :mod:`training.warm_start`'s work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class ModelSize:
    """The shape of a Llama. Head size (hidden / heads) must be 32 or 64: what vLLM's CPU kernels take."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    intermediate: int = 512
    context_length: int = 512
    vocabulary: int = 1280


TINY = ModelSize(hidden=64, layers=2, heads=2, intermediate=128, vocabulary=600)


def train_tokenizer(texts: Iterable[str], vocabulary: int, context_length: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over ``texts``. Deterministic: same texts, same tokenizer.

    Every message is encoded as if a space stood before it, so that a word has one token wherever it stands.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def create_model(tokenizer: PreTrainedTokenizerFast, size: ModelSize, seed: int) -> LlamaForCausalLM:
    """A Llama with random weights from a seed; embeddings tied, float32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.context_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write a Hugging Face model directory: safetensors, config, tokenizer with its chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, safe_serialization=True)
    tokenizer.save_pretrained(directory)
