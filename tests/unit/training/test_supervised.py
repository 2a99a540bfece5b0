"""Supervised learning: own words only, the best epoch is kept, and no dialogue is on both sides of the split."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from negotiation.adapter import AdapterName
from negotiation.authority import SAFE_REPLY
from negotiation.corpus import read_dialogues
from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.generation import GenerationRequest, Sampling
from negotiation.roles import Role
from negotiation.scenario import Turn
from negotiation.transcript import ChatFormat
from serving.engines.in_process import InProcessEngine
from training import supervised
from training.artifacts import BaseModelRef, load_base
from training.base_model import TINY, create_model
from training.config import AdapterSettings
from training.recorded import (
    NO_OWN_WORDS,
    NO_VIEW,
    TOO_LONG,
    Recorded,
    TooFewConversations,
    corpus_games,
    recite,
    role_views,
    split_by_dialogue,
)
from training.supervised import IGNORED, Row, SupervisedSettings, fit, own_row, perplexity, supervise

AGENT_1 = AdapterName(role=Role.AGENT, version=1)
SCENARIO = DealOrNoDeal()


def both_sides(first: str, second: str) -> list[str]:
    """The two lines of one dialogue, written for this test."""
    return [
        f"1 4 4 1 1 2 YOU: {first} <eos> THEM: {second} <eos> YOU: <selection> item0=1 item1=0 item2=0 <eos> "
        "reward=4 agree 1 2 4 2 1 0",
        f"1 2 4 2 1 0 THEM: {first} <eos> YOU: {second} <eos> THEM: <selection> item0=0 item1=4 item2=1 <eos> "
        "reward=8 agree 1 4 4 1 1 2",
    ]


def games(lines: list[str], role: Role = Role.AGENT) -> list[Recorded]:
    return corpus_games(read_dialogues(lines, "talk.txt"), role).games


def settings(**changes: Any) -> SupervisedSettings:
    small = {"epochs": 2, "batch_size": 4, "adapter": AdapterSettings(rank=4, alpha=8)}
    return SupervisedSettings(**{**small, **changes})


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> ChatFormat:
    return ChatFormat(tokenizer)


@pytest.fixture(scope="module")
def toy(chat: ChatFormat) -> tuple[list[Row], list[Row]]:
    """Twenty dialogues of two lines each: always the same few words, so that they can be learned."""
    rng = random.Random(0)
    wishes, answers = ("the book for me", "one book please"), ("fine", "deal then")
    lines = [line for _ in range(20) for line in both_sides(rng.choice(wishes), f"{rng.choice(answers)} {_}")]
    train, held_out = split_by_dialogue(games(lines), 0.2, 0)
    return tuple(  # type: ignore[return-value]
        [own_row(t) for t in role_views(part, Role.AGENT, SCENARIO, chat, 512).transcripts]
        for part in (train, held_out)
    )


@pytest.mark.parametrize("role", Role)
def test_a_corpus_line_is_played_from_the_roles_chair(role: Role, chat: ChatFormat) -> None:
    (game, mirrored) = games(both_sides("the book for me", "fine"), role)
    assert game.dialogue == mirrored.dialogue
    assert game.context.views[role] == mirrored.context.views[role.other] == {"values": [4, 1, 2]}
    said = [(turn.role, turn.text) for turn in game.turns]
    assert said == [
        (role, "the book for me"),
        (role.other, "fine"),
        (role, "[agree]"),
        (role.other, "[select 0 4 1]"),
        (role, "[select 1 0 0]"),
    ]
    transcript = recite(game, role, SCENARIO, chat)
    heard = [i for i, own in zip(transcript.ids, transcript.sampled, strict=True) if not own]
    assert "[select" not in chat.tokenizer.decode(heard).replace("[selection]", "")


def test_what_the_game_cannot_hold_is_counted_with_its_reason() -> None:
    said = " ".join(f"{side}: hm <eos>" for side in ("YOU", "THEM") * 7)
    line = f"1 4 4 1 1 2 {said} YOU: <selection> item0=1 item1=0 item2=0 <eos> reward=4 agree 1 2 4 2 1 0"
    found = corpus_games(read_dialogues([line], "talk.txt"), Role.AGENT)
    assert not found.games
    assert found.left_out == {"more than 13 utterances, the game's limit": 1}


@pytest.mark.parametrize(
    "ending",
    [
        "<selection> item0=1 item1=0 item2=0 <eos> reward=4 disagree",
        "<selection> no agreement <eos> reward=no agreement agree",
        "<selection> no agreement <eos> reward=no agreement disagree",
        "<selection> disconnect <eos> reward=disconnect disagree",
    ],
)
def test_endings_without_a_deal_are_played_too(ending: str) -> None:
    (game,) = games([f"1 4 4 1 1 2 YOU: hm <eos> THEM: {ending} 1 2 4 2 1 0"])
    assert game.turns[-1].move is not None


def test_no_dialogue_is_on_both_sides_of_the_split() -> None:
    recorded = games([line for n in range(30) for line in both_sides(f"book {n}", "fine")])
    for seed in range(3):
        train, held_out = split_by_dialogue(recorded, 0.1, seed)
        assert not {one.dialogue for one in train} & {one.dialogue for one in held_out}
        assert (len(train), len(held_out)) == (54, 6)
    assert split_by_dialogue(recorded, 0.1, 1) != split_by_dialogue(recorded, 0.1, 2)


def test_one_dialogue_cannot_be_split() -> None:
    with pytest.raises(TooFewConversations, match="1 different conversations, at least 2 are needed"):
        split_by_dialogue(games(both_sides("a", "b")), 0.1, 0)


def test_labels_are_the_roles_own_words_and_ends_of_turn(chat: ChatFormat) -> None:
    (game, _) = games(both_sides("the book for me", "fine"))
    ids, labels = own_row(recite(game, Role.AGENT, SCENARIO, chat))
    assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
    own = chat.tokenizer.decode([label for label in labels if label != IGNORED])
    assert " ".join(own.split()) == "the book for me<|end|> [agree]<|end|> [select 1 0 0]<|end|>"


@pytest.mark.parametrize("before", ["", "Good day. "])
def test_a_safe_reply_of_the_service_is_nobodys_words(before: str, chat: ChatFormat) -> None:
    context = SCENARIO.generate(1)
    said = (Turn(role=Role.COUNTERPART, text="Well?", shown="Well?"),)
    own = Turn(role=Role.AGENT, text=f"{before}{SAFE_REPLY}", shown=f"{before}{SAFE_REPLY}")
    transcript = recite(Recorded("one", context, (*said, own)), Role.AGENT, SCENARIO, chat)
    ours = [token for token, mine in zip(transcript.ids, transcript.sampled, strict=True) if mine]
    assert chat.tokenizer.decode(ours).strip() == before.strip()
    assert chat.tokenizer.decode(transcript.ids).endswith(SAFE_REPLY)


def test_the_others_words_bring_no_gradient(base: BaseModelRef, toy: tuple[list[Row], list[Row]]) -> None:
    model = load_base(base)
    (ids, labels), *_ = toy[0]
    captured: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: torch.Tensor) -> None:
        output.retain_grad()
        captured.append(output)

    handle = model.get_output_embeddings().register_forward_hook(keep)  # type: ignore[operator]
    supervised.mean_loss(model, torch.tensor([ids]), torch.tensor([labels])).backward()
    handle.remove()
    (logits,) = captured
    assert logits.grad is not None
    moved = logits.grad[0].abs().sum(-1) > 0
    assert moved.tolist() == [label != IGNORED for label in [*labels[1:], IGNORED]]


def test_views_that_cannot_be_learned_from_are_counted(chat: ChatFormat) -> None:
    game, _ = games(both_sides("the book for me", "fine"))
    silent = Recorded("silent", game.context, (Turn(role=Role.COUNTERPART, text="hi", shown="hi"),))
    unknown = game.context.model_copy(update={"views": {Role.COUNTERPART: game.context.views[Role.COUNTERPART]}})
    short = len(recite(game, Role.AGENT, SCENARIO, chat).ids)
    conversations = [game, silent, Recorded("unknown", unknown, game.turns), *games(both_sides("so " * 99, "fine"))]
    views = role_views(conversations, Role.AGENT, SCENARIO, chat, short)
    assert len(views.transcripts) == 1
    assert views.left_out == {NO_OWN_WORDS: 1, NO_VIEW: 1, TOO_LONG: 2}


def test_held_out_perplexity_falls_and_the_adapter_is_exported(
    base: BaseModelRef, toy: tuple[list[Row], list[Row]], tmp_path: Path
) -> None:
    steps: list[int] = []
    report = supervise(base, AGENT_1, *toy, settings(epochs=4), tmp_path, lambda at: steps.append(at.step))
    assert report.perplexity_after < 0.7 * report.perplexity_before
    assert report.perplexity_after == min(report.history)
    assert report.adapter == tmp_path / "agent@1"
    assert report.manifest is not None
    assert steps == list(range(1, len(steps) + 1))
    engine = InProcessEngine(base.path, base.sha256, max_adapters=1, max_batch=2, threads=1)
    try:
        engine.load_adapter("agent@1", report.adapter)
        [result] = engine.generate([GenerationRequest((2, 8, 9), "agent@1", Sampling(max_tokens=4, seed=1))])
    finally:
        engine.close()
    assert result.token_ids


def test_the_same_seed_gives_the_same_adapter(
    base: BaseModelRef, toy: tuple[list[Row], list[Row]], tmp_path: Path
) -> None:
    runs = [
        supervise(base, AGENT_1, *toy, settings(epochs=1, seed=seed), tmp_path / str(n))
        for n, seed in enumerate((3, 3, 4))
    ]
    digests = [run.manifest.files["adapter_model.safetensors"] for run in runs if run.manifest]
    assert digests[0] == digests[1] != digests[2]


def test_the_best_epoch_is_kept_and_patience_ends_it(
    base: BaseModelRef, toy: tuple[list[Row], list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_base(base)
    told = iter([9.0, 5.0, 4.0, 4.5, 4.0])
    seen: list[torch.Tensor] = []

    def scripted(model: Any, *_: Any) -> float:
        seen.append(next(model.parameters()).detach().clone())
        return next(told)

    monkeypatch.setattr(supervised, "perplexity", scripted)
    report = fit(model, *toy, settings(epochs=9, patience=2))
    assert (report.best_epoch, report.epochs, report.perplexity_before, report.perplexity_after) == (2, 4, 9.0, 4.0)
    assert report.history == (5.0, 4.0, 4.5, 4.0)
    kept = next(model.parameters())
    assert torch.equal(kept, seen[2])
    assert not torch.equal(kept, seen[4])


def test_training_that_never_helps_keeps_the_weights_it_began_with(
    base: BaseModelRef, toy: tuple[list[Row], list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_base(base)
    before = next(model.parameters()).detach().clone()
    told = iter([2.0, 3.0, 3.0])
    monkeypatch.setattr(supervised, "perplexity", lambda *_: next(told))
    assert fit(model, *toy, settings(epochs=9, patience=2)).best_epoch == 0
    assert torch.equal(next(model.parameters()), before)


def test_all_weights_of_a_fresh_model_learn(tokenizer: Any, toy: tuple[list[Row], list[Row]]) -> None:
    model = create_model(tokenizer, TINY, seed=1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    report = fit(model, *toy, settings(epochs=3, matrix_learning_rate=0.02))
    assert report.perplexity_after < 0.7 * report.perplexity_before
    assert all(not torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert perplexity(model, toy[1], 3) == pytest.approx(report.perplexity_after, rel=1e-4)


def test_an_epoch_may_be_a_part_of_a_large_set(base: BaseModelRef, toy: tuple[list[Row], list[Row]]) -> None:
    report = fit(load_base(base), *toy, settings(epochs=3, epoch_views=8, learning_rate=1e-3))
    assert report.epochs == 3
    steps: list[int] = []
    fit(load_base(base), *toy, settings(epochs=1, epoch_views=9), lambda at: steps.append(at.of))
    assert steps == [3, 3, 3]


def test_an_existing_version_is_refused_before_any_work(
    base: BaseModelRef, toy: tuple[list[Row], list[Row]], tmp_path: Path
) -> None:
    (tmp_path / "agent@1").mkdir()
    with pytest.raises(FileExistsError, match="immutable, choose a new version"):
        supervise(base, AGENT_1, *toy, settings(), tmp_path, lambda _: pytest.fail("it trained"))


@pytest.mark.parametrize(("train", "held_out", "which"), [(False, True, "training"), (True, False, "held-out")])
def test_nothing_to_learn_from_is_an_error(
    base: BaseModelRef, toy: tuple[list[Row], list[Row]], train: bool, held_out: bool, which: str
) -> None:
    with pytest.raises(ValueError, match=f"0 {which} views hold no own token"):
        fit(load_base(base), toy[0] if train else [], toy[1] if held_out else [], settings())
