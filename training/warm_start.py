"""Builds the bundled base model: a small Llama warm-started on dialogues of our own scripted negotiators.

Both roles of both scenarios are learned by one model, from the training families only (never a held-out
family, never the human corpus). The loss covers a role's own tokens; everything else is context. On CPU the
same seed gives the same weights.

Run: ``sparring model build --output DIRECTORY``.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from datasets import Dataset
from pydantic import BaseModel, ConfigDict, Field
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from negotiation.catalogue import NAMES, scenario_named
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState, Scenario
from negotiation.transcript import ChatFormat, Transcript
from training.base_model import ModelSize, create_model, save_model, train_tokenizer
from training.counterparts import negotiators

DIGEST_FILE = "model.sha256"
REPORT_FILE = "build.json"
_SEED_SPAN = 10_000_000
_IGNORED = -100


class WarmStartSettings(BaseModel):
    """How the base model is built."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(0, ge=0, description="Seed of scenarios, weights and order.")
    dialogues: int = Field(10_000, ge=16, description="Scripted dialogues to learn from; each gives two role views.")
    telesales_share: float = Field(0.65, ge=0, le=1, description="Share of dialogues that are telesales calls.")
    epochs: float = Field(1.5, gt=0, description="Passes over the data.")
    batch_size: int = Field(32, ge=1, description="Role views in a step.")
    learning_rate: float = Field(2e-3, gt=0, description="Peak learning rate of AdamW, cosine schedule.")
    threads: int = Field(2, ge=1, description="Torch threads.")
    size: ModelSize = ModelSize()


@dataclass(frozen=True)
class BuildReport:
    """What was built: parameters, loss at the end (nats per own token), digest of ``model.safetensors``."""

    directory: str
    parameters: int
    role_views: int
    tokens: int
    steps: int
    final_loss: float
    sha256: str
    seed: int


@dataclass(frozen=True)
class ScriptedDialogue:
    scenario: Scenario
    context: Context
    state: NegotiationState


def scripted_dialogues(settings: WarmStartSettings) -> Iterator[ScriptedDialogue]:
    """Dialogues between training families, an endless mixture fixed by the seed."""
    rng = random.Random(f"warm start:{settings.seed}")
    telesales, deal = NAMES
    for index in range(settings.dialogues):
        scenario = scenario_named(telesales if rng.random() < settings.telesales_share else deal)
        context = scenario.generate(settings.seed * _SEED_SPAN + index)
        players = {role: rng.choice(negotiators(scenario.name, role, "train")) for role in Role}
        state = scenario.begin(context)
        while state.closed is None:
            role = state.next_speaker
            state = scenario.advance(context, state, role, players[role].reply(context, state, rng))
        yield ScriptedDialogue(scenario, context, state)


def role_view(dialogue: ScriptedDialogue, role: Role, chat: ChatFormat) -> Transcript:
    """The dialogue as ``role``'s model would have seen and spoken it."""
    transcript = Transcript(chat, dialogue.scenario.system_prompt(role, dialogue.context))
    for turn in dialogue.state.turns:
        if turn.role is role:
            if not transcript.ids:
                transcript.open()
            ids = [*chat.tokenizer.encode(turn.text, add_special_tokens=False), chat.end_of_turn_id]
            transcript.speak(ids, [0.0] * len(ids))
        else:
            transcript.hear(turn.shown)
    return transcript


def build_base_model(
    output: Path, settings: WarmStartSettings, progress: Callable[[int, int, float], None]
) -> BuildReport:
    """Generate dialogues, train tokenizer and model, write a model directory with its digest.

    ``progress(step, of, loss)`` is called as training goes. Raises ValueError if ``output`` is not empty.
    """
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"{output} is not empty: choose a new directory for the model")
    torch.set_num_threads(settings.threads)
    size = settings.size
    dialogues = list(scripted_dialogues(settings))
    tokenizer = train_tokenizer(_texts(dialogues), size.vocabulary, size.context_length)
    model = create_model(tokenizer, size, settings.seed)
    data = _dataset(dialogues, tokenizer, size.context_length)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(output.with_name(output.name + ".training")),
            num_train_epochs=settings.epochs,
            per_device_train_batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=40,
            weight_decay=0.01,
            adam_beta2=0.98,
            train_sampling_strategy="group_by_length",
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            seed=settings.seed,
            remove_unused_columns=False,
        ),
        train_dataset=data,
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=_IGNORED),
        callbacks=[_Progress(progress)],
    )
    result = trainer.train()
    save_model(model, tokenizer, output)
    digest = hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()
    report = BuildReport(
        directory=output.name,
        parameters=model.num_parameters(),
        role_views=len(data),
        tokens=sum(len(ids) for ids in data["input_ids"]),
        steps=result.global_step,
        final_loss=next(log["loss"] for log in reversed(trainer.state.log_history) if "loss" in log),
        sha256=digest,
        seed=settings.seed,
    )
    (output / DIGEST_FILE).write_text(digest + "\n", encoding="utf-8")
    (output / REPORT_FILE).write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    return report


def _texts(dialogues: Sequence[ScriptedDialogue]) -> Iterator[str]:
    for dialogue in dialogues:
        for role in Role:
            yield dialogue.scenario.system_prompt(role, dialogue.context)
        for turn in dialogue.state.turns:
            yield turn.text


def _dataset(
    dialogues: Sequence[ScriptedDialogue], tokenizer: PreTrainedTokenizerFast, context_length: int
) -> Dataset:
    chat = ChatFormat(tokenizer)
    rows: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for dialogue in dialogues:
        for role in Role:
            view = role_view(dialogue, role, chat)
            if not any(view.sampled) or len(view.ids) > context_length:
                continue
            labels = [t if own else _IGNORED for t, own in zip(view.ids, view.sampled, strict=True)]
            rows["input_ids"].append(view.ids)
            rows["labels"].append(labels)
    return Dataset.from_dict(rows)


class _Progress(TrainerCallback):
    def __init__(self, report: Callable[[int, int, float], None]) -> None:
        self.report = report

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if logs and "loss" in logs:
            self.report(state.global_step, state.max_steps, float(logs["loss"]))
