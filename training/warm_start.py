"""Builds the bundled base model: a small Llama warm-started on dialogues of our own scripted negotiators.

Both roles of both scenarios are learned by one model, from the training families only (never a held-out
family, never the human corpus). The loss covers every token after the system prompt: a role's own tokens are what
it will say, and the other side's teach it to follow references sooner. The first half of the steps mixes in
look-up drills (:mod:`training.drills`). Matrices are optimised by Muon (Jordan et al. 2024; ``torch.optim.Muon``),
which here reaches AdamW's loss in about half the steps, the rest by AdamW. On one kind of CPU the same seed and
number of threads give the same weights.

Run: ``sparring model build --output DIRECTORY``.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from negotiation.catalogue import NAMES, scenario_named
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState, Scenario
from negotiation.transcript import ChatFormat, Transcript
from training.base_model import ModelSize, create_model, save_model, train_tokenizer
from training.counterparts import negotiators
from training.drills import drill
from training.supervised import IGNORED, Row, own_row
from training.wording import strange

DIGEST_FILE = "model.sha256"
REPORT_FILE = "build.json"
_SEED_SPAN = 10_000_000
_WARM_UP_STEPS = 40
_REPORT_EVERY = 10
_COPIED = 24


class WarmStartSettings(BaseModel):
    """How the base model is built."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(0, ge=0, description="Seed of scenarios, weights and order.")
    dialogues: int = Field(10_000, ge=16, description="Scripted dialogues to learn from; each gives two role views.")
    telesales_share: float = Field(0.7, ge=0, le=1, description="Share of dialogues that are telesales calls.")
    strange_share: float = Field(
        0.5, ge=0, le=1, description="Share of role views in which the other side's words are made strange."
    )
    copy_steps: int = Field(150, ge=0, description="Optimizer steps on repeated random tokens, before all else.")
    steps: int = Field(1000, ge=1, description="Optimizer steps in all.")
    batch_size: int = Field(32, ge=2, description="Role views in a step.")
    drill_share: float = Field(0.5, ge=0, lt=1, description="Share of drills in the batches of the first half.")
    matrix_learning_rate: float = Field(0.02, gt=0, description="Peak learning rate of Muon, cosine schedule.")
    other_learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate of AdamW, cosine schedule.")
    threads: int = Field(1, ge=1, description="Torch threads; the weights depend on it.")
    size: ModelSize = ModelSize()


@dataclass(frozen=True)
class BuildReport:
    """What was built: parameters, loss at the end (nats per own token), digest of ``model.safetensors``."""

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
    """Dialogues between the warm start's negotiators, an endless mixture fixed by the seed."""
    rng = random.Random(f"warm start:{settings.seed}")
    telesales, deal = NAMES
    for index in range(settings.dialogues):
        scenario = scenario_named(telesales if rng.random() < settings.telesales_share else deal)
        context = scenario.generate(settings.seed * _SEED_SPAN + index)
        players = {role: rng.choice(negotiators(scenario.name, role, "warm_start")) for role in Role}
        state = scenario.begin(context)
        while state.closed is None:
            role = state.next_speaker
            state = scenario.advance(context, state, role, players[role].reply(context, state, rng))
        yield ScriptedDialogue(scenario, context, state)


def role_view(
    dialogue: ScriptedDialogue, role: Role, chat: ChatFormat, heard: Callable[[str], str] = str
) -> Transcript:
    """The dialogue as ``role``'s model would have seen and spoken it; ``heard`` may reword the other side."""
    transcript = Transcript(chat, dialogue.scenario.system_prompt(role, dialogue.context))
    for turn in dialogue.state.turns:
        if turn.role is role:
            if not transcript.ids:
                transcript.open()
            _recite(transcript, turn.text)
        else:
            transcript.hear(heard(turn.shown))
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
    rows = _rows(dialogues, tokenizer, settings)
    losses = _fit(model, _Batches(rows, tokenizer, settings), settings, progress)
    save_model(model, tokenizer, output)
    digest = hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()
    report = BuildReport(
        parameters=model.num_parameters(),
        role_views=len(rows),
        tokens=sum(len(ids) for ids, _ in rows),
        steps=settings.steps,
        final_loss=losses[-1],
        sha256=digest,
        seed=settings.seed,
    )
    (output / DIGEST_FILE).write_text(digest + "\n", encoding="utf-8")
    (output / REPORT_FILE).write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    return report


def _fit(
    model: LlamaForCausalLM,
    batches: _Batches,
    settings: WarmStartSettings,
    progress: Callable[[int, int, float], None],
) -> list[float]:
    """Train; returns the mean loss (nats per token) of every ten steps."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=settings.matrix_learning_rate, weight_decay=0.01),
        torch.optim.AdamW(others, lr=settings.other_learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]

    def schedule(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * step / settings.steps))
        return max(0.01, min(1.0, (step + 1) / _WARM_UP_STEPS) * cosine)

    schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, schedule) for optimizer in optimizers]
    reported: list[float] = []
    recent: list[float] = []
    model.train()
    for step in range(settings.steps):
        ids, labels = batches.next(step)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()
        recent.append(loss.item())
        if (step + 1) % _REPORT_EVERY == 0 or step + 1 == settings.steps:
            reported.append(sum(recent) / len(recent))
            recent.clear()
            progress(step + 1, settings.steps, reported[-1])
    return reported


class _Batches:
    """Batches of rows of similar length, drills mixed in during the first half. Order fixed by the seed."""

    def __init__(self, rows: Sequence[Row], tokenizer: PreTrainedTokenizerFast, settings: WarmStartSettings) -> None:
        self.rows, self.settings = rows, settings
        self.chat = ChatFormat(tokenizer)
        self.pad, self.vocabulary = tokenizer.pad_token_id, len(tokenizer)
        self.rng = random.Random(f"batches:{settings.seed}")
        self.order: list[int] = []
        self.drills = settings.seed * _SEED_SPAN

    def next(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and labels, each [batch, longest]."""
        size = self.settings.batch_size
        if step < self.settings.copy_steps:
            return self._copies(2 * size)
        drills = int(size * self.settings.drill_share) if step < self.settings.steps / 2 else 0
        chosen = [self._drill() for _ in range(drills)]
        while len(chosen) < size:
            if not self.order:
                self._shuffle()
            chosen.append(self.rows[self.order.pop()])
        ids = pad_sequence([torch.tensor(row[0]) for row in chosen], batch_first=True, padding_value=self.pad)
        labels = pad_sequence([torch.tensor(row[1]) for row in chosen], batch_first=True, padding_value=IGNORED)
        return ids, labels

    def _copies(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random tokens, twice over: the cheapest text from which to learn to copy (Olsson et al. 2022)."""
        rows = [self.rng.choices(range(self.vocabulary), k=_COPIED) for _ in range(size)]
        once = torch.tensor(rows)
        return once.repeat(1, 2), torch.cat([torch.full_like(once, IGNORED), once], 1)

    def _shuffle(self) -> None:
        size = self.settings.batch_size
        order = list(range(len(self.rows)))
        self.rng.shuffle(order)
        pools = [order[first : first + 16 * size] for first in range(0, len(order), 16 * size)]
        ordered = [sorted(pool, key=lambda index: len(self.rows[index][0])) for pool in pools]
        batches = [pool[first : first + size] for pool in ordered for first in range(0, len(pool), size)]
        self.rng.shuffle(batches)
        self.order = [index for batch in batches for index in batch]

    def _drill(self) -> Row:
        one = drill(self.drills)
        self.drills += 1
        transcript = Transcript(self.chat, one.system_prompt)
        for question, answer in one.exchanges:
            transcript.hear(question)
            _recite(transcript, answer)
        return own_row(transcript)


def _recite(transcript: Transcript, text: str) -> None:
    chat = transcript.chat
    ids = [*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_of_turn_id]
    transcript.speak(ids, [0.0] * len(ids))


def _texts(dialogues: Sequence[ScriptedDialogue]) -> Iterator[str]:
    for dialogue in dialogues:
        for role in Role:
            yield dialogue.scenario.system_prompt(role, dialogue.context)
        for turn in dialogue.state.turns:
            yield turn.text


def _rows(
    dialogues: Sequence[ScriptedDialogue], tokenizer: PreTrainedTokenizerFast, settings: WarmStartSettings
) -> list[Row]:
    chat = ChatFormat(tokenizer)
    rng = random.Random(f"wording:{settings.seed}")
    rows: list[Row] = []
    for dialogue in dialogues:
        for role in Role:
            reworded = rng.random() < settings.strange_share
            view = role_view(dialogue, role, chat, (lambda text: strange(text, rng)) if reworded else str)
            if not any(view.sampled) or len(view.ids) > settings.size.context_length:
                continue
            if reworded:
                _, labels = own_row(view)
            else:
                said = len(chat.opening(view.system_prompt)) - 1
                labels = [IGNORED] * said + view.ids[said:]
            rows.append((view.ids, labels))
    return rows
