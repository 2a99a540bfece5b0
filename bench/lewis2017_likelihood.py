"""The LIKELIHOOD model of ``bench/lewis2017.py``: a small Llama trained from nothing on human dialogues.

Each line of the corpus is one view: the line's own side in the agent's chair, its values in the system prompt. As in
Lewis et al. 2017 the loss covers the words of both sides, while early stopping looks at the own ones. Three helps
that they did not need, as their decision about the split was a classifier of its own and here it is text as well:
exercises in reading come first (:mod:`lewis2017_scripted`), a statement names each item before the move, and human
dialogues are used several times, with book, hat and ball changing places in words, counts, values and statements.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from lewis2017_scripted import copy_row, games_row, stated, texts, wishes_row
from pydantic import BaseModel, ConfigDict
from transformers import LlamaForCausalLM

from negotiation.corpus import CorpusDialogue, read_dialogues
from negotiation.deal_or_no_deal import ITEMS, DealOrNoDeal, Split
from negotiation.roles import Role
from negotiation.transcript import ChatFormat, Transcript
from training.base_model import ModelSize, create_model, save_model, train_tokenizer
from training.recorded import Recorded, corpus_games, recite, role_views, split_by_dialogue
from training.supervised import IGNORED, Row, SupervisedProgress, SupervisedReport, SupervisedSettings, fit, own_row

Show = Callable[[str, int, int, str], None]
_SCENARIO = DealOrNoDeal()
_WORD = re.compile(r"\b(book|hat|ball|basketball)(s?)\b")
_STATED = re.compile(r"(?:book \d hat \d ball \d )?\[select (\d) (\d) (\d)\]")
_CHECKED = 100
_KIND = {**{item: index for index, item in enumerate(ITEMS)}, "basketball": 2}


class Recipe(BaseModel):
    """How the model is made. Exercises are rows, each seen once; ``epoch_views`` human views are one epoch.

    ``statement_epochs`` more follow in which the statement of the split alone is learned, at a third of the rate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    size: ModelSize = ModelSize(vocabulary=1500)
    copies: int = 4000
    wishes: int = 5000
    games: int = 4000
    permutations: int = 6
    epochs: int = 8
    statement_epochs: int = 3
    epoch_views: int = 10_000
    patience: int = 2
    batch_size: int = 16
    learning_rate: float = 3e-3
    matrix_learning_rate: float = 0.02

    def settings(self, **changes: Any) -> SupervisedSettings:
        chosen = {
            "seed": self.seed,
            "epochs": self.epochs,
            "epoch_views": self.epoch_views,
            "patience": self.patience,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "matrix_learning_rate": self.matrix_learning_rate,
        }
        return SupervisedSettings(**{**chosen, **changes})


@dataclass(frozen=True)
class LikelihoodReport:
    """The model, what it learned from and how well it fits: perplexity per own token on held-out dialogues.

    ``statements`` is the share of held-out views whose greedy statement of the split, given the human dialogue before
    it, is the human's. ``left_out`` counts corpus lines and views by reason.
    """

    parameters: int
    sha256: str
    lines: int
    left_out: dict[str, int]
    exercises: dict[str, SupervisedReport]
    human: SupervisedReport
    splits: SupervisedReport | None
    statements: float
    statements_of: int


def corpus_dialogues(file: Path) -> list[CorpusDialogue]:
    """All lines of a ``dialogues.txt``. Raises CorpusError."""
    with file.open(encoding="utf-8") as lines:
        return list(read_dialogues(lines, str(file)))


def build_likelihood(
    corpus: Sequence[CorpusDialogue], recipe: Recipe, directory: Path, show: Show
) -> LikelihoodReport:
    """Train and write a model directory. ``show(stage, done, of, note)`` is called as it goes."""
    found = corpus_games(corpus, Role.AGENT)
    games = [_worded(game) for game in found.games]
    train, held_out = split_by_dialogue(games, recipe.settings().held_out_share, recipe.seed)
    first = recipe.seed * 1_000_000
    words = [*_texts(train), *texts(min(2000, recipe.games), first)]
    tokenizer = train_tokenizer(words, recipe.size.vocabulary, recipe.size.context_length)
    chat = ChatFormat(tokenizer)
    model = create_model(tokenizer, recipe.size, recipe.seed)
    left_out: Counter[str] = Counter(found.left_out)

    def rows(recorded: Sequence[Recorded], label: Callable[[Transcript], Row], count: bool = False) -> list[Row]:
        views = role_views(recorded, Role.AGENT, _SCENARIO, chat, recipe.size.context_length)
        if count:
            left_out.update(views.left_out)
        return [label(transcript) for transcript in views.transcripts]

    def progress(stage: str) -> Callable[[SupervisedProgress], None]:
        return lambda at: show(stage, at.step, at.of, f"loss {at.loss:.2f}, perplexity {at.perplexity:.2f}")

    exercises: dict[str, SupervisedReport] = {}
    for name, count, row in (
        ("copies", recipe.copies, lambda seed: copy_row(len(tokenizer), seed)),
        ("wishes", recipe.wishes, lambda seed: wishes_row(chat, seed)),
        ("games", recipe.games, lambda seed: games_row(chat, seed)),
    ):
        if count:
            made = [row(first + number) for number in range(count + _CHECKED)]
            once = recipe.settings(epochs=1, epoch_views=None)
            exercises[name] = fit(model, made[_CHECKED:], made[:_CHECKED], once, progress(name))
    orders = list(permutations(range(len(ITEMS))))[: recipe.permutations]
    human = fit(
        model,
        rows([_permuted(game, order) for order in orders for game in train], _both_sides_row),
        rows(held_out, own_row, count=True),
        recipe.settings(),
        progress("people"),
    )
    splits = None
    if recipe.statement_epochs:
        gentle = {"learning_rate": recipe.learning_rate / 3, "matrix_learning_rate": recipe.matrix_learning_rate / 3}
        splits = fit(
            model,
            rows([_permuted(game, order) for order in orders for game in train], _statement_row),
            rows(held_out, _statement_row),
            recipe.settings(epochs=recipe.statement_epochs, **gentle),
            progress("splits"),
        )
    save_model(model, tokenizer, directory)
    right, asked = statement_accuracy(model, chat, held_out)
    return LikelihoodReport(
        parameters=model.num_parameters(),
        sha256=hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest(),
        lines=len(corpus),
        left_out=dict(left_out),
        exercises=exercises,
        human=human,
        splits=splits,
        statements=right / asked,
        statements_of=asked,
    )


def statement_accuracy(model: LlamaForCausalLM, chat: ChatFormat, games: Sequence[Recorded]) -> tuple[int, int]:
    """Held-out views whose statement of a split is the likeliest at each of its tokens; and how many views."""
    right = asked = 0
    with torch.no_grad():
        for game in games:
            transcript = recite(game, Role.AGENT, _SCENARIO, chat)
            text = [turn.text for turn in game.turns if turn.role is Role.AGENT][-1]
            statement = chat.tokenizer.encode(text, add_special_tokens=False)
            # The last own words: what follows them is marks of the template and the other's hidden statement.
            end = len(transcript.sampled) - 1 - transcript.sampled[::-1].index(1)
            if "none" in text or end > model.config.max_position_embeddings:
                continue
            logits = model(input_ids=torch.tensor([transcript.ids[:end]]), use_cache=False).logits[0]
            likeliest = logits[-1 - len(statement) : -1].argmax(-1).tolist()
            right, asked = right + (likeliest == statement), asked + 1
    return right, max(1, asked)


def _both_sides_row(transcript: Transcript) -> Row:
    """Labels on all that was said by either side, not on the system prompt."""
    said = len(transcript.chat.opening(transcript.system_prompt)) - 1
    return transcript.ids, [IGNORED] * said + transcript.ids[said:]


def _statement_row(transcript: Transcript) -> Row:
    """Labels on the last own words alone: what the side says that it got."""
    end = len(transcript.sampled) - transcript.sampled[::-1].index(1)
    begin = end - next((back for back, own in enumerate(transcript.sampled[:end][::-1]) if not own), end)
    labels = [token if begin <= place < end else IGNORED for place, token in enumerate(transcript.ids)]
    return transcript.ids, labels


def _permuted(game: Recorded, order: tuple[int, ...]) -> Recorded:
    """The same game about other items: kind i becomes kind ``order[i]``, in words, counts, values and statements."""
    if order == tuple(range(len(ITEMS))):
        return game

    def moved(split: Sequence[Any]) -> list[Any]:
        return [split[order.index(kind)] for kind in range(len(ITEMS))]

    def reworded(text: str) -> str:
        if not _STATED.search(text):
            return _WORD.sub(lambda match: ITEMS[order[_KIND[match[1]]]] + match[2], text)
        return _STATED.sub(lambda match: stated(_split(moved(match.groups()))), text)

    context = game.context.model_copy(
        update={
            "public": {"counts": moved(game.context.public["counts"])},
            "views": {role: {"values": moved(view["values"])} for role, view in game.context.views.items()},
        }
    )
    turns = tuple(
        turn.model_copy(update={"text": reworded(turn.text), "shown": reworded(turn.shown)}) for turn in game.turns
    )
    return replace(game, context=context, turns=turns)


def _worded(game: Recorded) -> Recorded:
    """The same game with statements that name each item (:func:`lewis2017_scripted.stated`)."""
    return replace(
        game,
        turns=tuple(
            turn.model_copy(update={"text": _STATED.sub(lambda match: stated(_split(match.groups())), turn.text)})
            for turn in game.turns
        ),
    )


def _split(words: Sequence[Any]) -> Split:
    return int(words[0]), int(words[1]), int(words[2])


def _texts(recorded: Sequence[Recorded]) -> Iterator[str]:
    for one in recorded:
        yield _SCENARIO.system_prompt(Role.AGENT, one.context)
        yield from (turn.text for turn in one.turns)
