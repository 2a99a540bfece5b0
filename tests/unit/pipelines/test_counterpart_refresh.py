"""The counterpart's warm start: own words only, nothing of the agent's, and kept only if it is better."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from negotiation.adapter import MANIFEST_FILE, AdapterName
from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from negotiation.scenario import Turn
from pipelines.config import RefreshSettings
from pipelines.counterpart_refresh import customer_views, refresh, split
from pipelines.round_state import RefreshRecord
from training.artifacts import BaseModelRef, initialise_adapter
from training.config import AdapterSettings, TrainingSettings
from training.methods import Method
from training.recorded import Recorded
from training.supervised import SupervisedProgress

SCENARIO = scenario_named("telesales")
TRAINING = TrainingSettings(threads=1, adapter=AdapterSettings(rank=4, alpha=8, target_modules=("q_proj", "v_proj")))
SETTINGS = RefreshSettings(min_turns=10, max_steps=6, batch_size=8, learning_rate=1e-2)
NEW = AdapterName(role=Role.COUNTERPART, version=2)


def conversation(number: int, *, known: bool = False) -> Recorded:
    context = SCENARIO.generate(number)
    views = context.views if known else {Role.AGENT: context.views[Role.AGENT]}
    wish = random.Random(number).choice(["a coupe", "an suv"])
    said = [(Role.AGENT, "Which one?"), (Role.COUNTERPART, f"I want {wish}."), (Role.COUNTERPART, "[quit]")]
    turns = tuple(Turn(role=role, text=text, shown=text) for role, text in (said[0], said[1]))
    return Recorded(f"c{number}", context.model_copy(update={"views": views}), turns)


CALLS = [conversation(number) for number in range(40)]


@pytest.fixture(scope="module")
def base(tiny_model_dir: Path) -> BaseModelRef:
    digest = hashlib.sha256((tiny_model_dir / "model.safetensors").read_bytes()).hexdigest()
    return BaseModelRef(tiny_model_dir, "tiny", digest)


@pytest.fixture(scope="module")
def champion(base: BaseModelRef, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = AdapterName(role=Role.COUNTERPART, version=1)
    directory = tmp_path_factory.mktemp("champion") / str(name)
    initialise_adapter(base, name, TRAINING.adapter, 0, directory)
    return directory


def run(
    base: BaseModelRef, champion: Path, output: Path, calls: list[Recorded] = CALLS, **changes: Any
) -> RefreshRecord:
    training = changes.pop("training", TRAINING)
    progress = changes.pop("progress", lambda _: None)
    settings = SETTINGS.model_copy(update=changes)
    return refresh(calls, champion, base, SCENARIO, settings, training, NEW, output, progress)


def test_it_is_applied_where_the_held_out_perplexity_falls(
    base: BaseModelRef, champion: Path, tmp_path: Path
) -> None:
    record = run(base, champion, tmp_path)
    assert record.applied
    assert record.perplexity_before is not None
    assert record.perplexity_after is not None
    assert record.perplexity_after < record.perplexity_before
    assert record.turns == 40
    assert record.conversations + record.held_out == 40
    assert (tmp_path / str(NEW) / MANIFEST_FILE).exists()


def test_it_goes_on_from_the_champion(base: BaseModelRef, champion: Path, tmp_path: Path) -> None:
    first = run(base, champion, tmp_path)
    second = run(base, tmp_path / str(NEW), tmp_path / "again")
    assert second.perplexity_before == pytest.approx(first.perplexity_after)


def test_what_is_not_better_is_not_kept(base: BaseModelRef, champion: Path, tmp_path: Path) -> None:
    """What is learned says one thing and what is held out another, so that learning makes it worse."""
    views, _ = customer_views(CALLS, SCENARIO, SETTINGS, base)
    aside = {id(view) for view in split(views, SETTINGS)[1]}
    held_out = {identity for identity, view in views.items() if id(view) in aside}

    def said(one: Recorded, text: str) -> Recorded:
        turn = Turn(role=Role.COUNTERPART, text=text, shown=text)
        return Recorded(one.dialogue, one.context, (one.turns[0], turn))

    calls = [said(one, "[accept]" if one.dialogue in held_out else "yes " * 20) for one in CALLS]
    record = run(base, champion, tmp_path, calls, learning_rate=0.5)
    assert not record.applied
    assert record.reason.startswith("not applied")
    assert record.perplexity_before == record.perplexity_after
    assert not (tmp_path / str(NEW)).exists()


def test_too_few_turns_are_reported(base: BaseModelRef, champion: Path, tmp_path: Path) -> None:
    record = run(base, champion, tmp_path, min_turns=41)
    assert (record.applied, record.reason) == (False, "skipped: 40 turns of real customers, 41 needed")


def test_it_can_be_switched_off_and_is_no_matter_where_no_counterpart_learns(
    base: BaseModelRef, champion: Path, tmp_path: Path
) -> None:
    assert "switched off" in run(base, champion, tmp_path, enabled=False).reason
    shared = TRAINING.model_copy(update={"method": Method.SELF_PLAY})
    assert "self-play has no counterpart" in run(base, champion, tmp_path, training=shared).reason


def test_interrupted_and_repeated_it_gives_the_same_adapter_whatever_the_order(
    base: BaseModelRef, champion: Path, tmp_path: Path
) -> None:
    class Killed(BaseException):
        pass

    def kill(at: SupervisedProgress) -> None:
        if at.step == 2:
            raise Killed

    run(base, champion, tmp_path / "straight")
    with pytest.raises(Killed):
        run(base, champion, tmp_path / "killed", progress=kill)
    # Left whole by a process that was killed before it could say so.
    (tmp_path / "killed" / str(NEW)).mkdir(parents=True, exist_ok=True)
    run(base, champion, tmp_path / "killed", CALLS[::-1])
    digests = {(tmp_path / way / str(NEW) / MANIFEST_FILE).read_bytes() for way in ("straight", "killed")}
    assert len(digests) == 1


def test_only_the_customers_words_are_learned_and_the_agents_view_is_not_in_the_prompt(base: BaseModelRef) -> None:
    context = CALLS[0].context
    agent = {**context.views[Role.AGENT], "floors": dict.fromkeys(context.views[Role.AGENT]["floors"], 100)}
    known = conversation(0, known=True).context
    secret = Recorded("c0", known.model_copy(update={"views": {**known.views, Role.AGENT: agent}}), CALLS[0].turns)
    plain = conversation(0, known=True)
    seen = [customer_views([one], SCENARIO, SETTINGS, base)[0]["c0"] for one in (secret, plain)]
    assert seen[0].ids == seen[1].ids
    own = [token for token, sampled in zip(seen[0].ids, seen[0].sampled, strict=True) if sampled]
    assert seen[0].chat.tokenizer.decode(own, skip_special_tokens=True).strip() == CALLS[0].turns[1].text


def test_a_known_view_is_used_and_an_unknown_one_is_drawn_alike_each_time(base: BaseModelRef) -> None:
    def prompt(one: Recorded, seed: int = 0) -> str:
        settings = SETTINGS.model_copy(update={"seed": seed})
        return customer_views([one], SCENARIO, settings, base)[0][one.dialogue].system_prompt

    known = conversation(3, known=True)
    assert prompt(known) == SCENARIO.system_prompt(Role.COUNTERPART, known.context)
    assert prompt(CALLS[3]) == prompt(CALLS[3])
    assert len({prompt(CALLS[3], seed) for seed in range(5)}) > 1


def test_a_conversation_stays_on_its_side_when_others_come(base: BaseModelRef) -> None:
    views, _ = customer_views(CALLS, SCENARIO, SETTINGS, base)
    few = dict(list(views.items())[:15])
    held_out = {id(one) for one in split(views, SETTINGS)[1]}
    assert 0 < len(held_out) < 20
    assert {id(one) for one in split(few, SETTINGS)[1]} == {id(one) for one in few.values()} & held_out
