"""Joint rollouts: every table comes back once and in order, on append-only tokens, and nothing broken is scored."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from negotiation.catalogue import NAMES, scenario_named
from negotiation.generation import BASE, GenerationRequest, Sampling
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, NegotiationState, Outcome, ScenarioError
from negotiation.telesales import VehicleTelesales
from training.counterparts import negotiators
from training.joint_rollout import Dialogue, ModelPlayer, Player, Rollout, RolloutFailed, ScriptedPlayer, Table, play
from training.views import training_view

New = Callable[..., Any]
SHORT = Sampling(max_tokens=8)
MODELS: dict[Role, Player] = {role: ModelPlayer(BASE) for role in Role}


def tables(scenario: Any, count: int, players: dict[Role, Player] = MODELS) -> list[Table]:
    return [Table(scenario.generate(seed), players, seed) for seed in range(count)]


def against_script(name: str, role: Role) -> dict[Role, Player]:
    return {role: ModelPlayer(BASE), role.other: ScriptedPlayer(negotiators(name, role.other, "train")[0])}


def tokens_of(rollout: Rollout) -> list[dict[Role, list[int]]]:
    return [{role: t.ids for role, t in dialogue.transcripts.items()} for dialogue in rollout.dialogues]


@pytest.mark.parametrize("name", NAMES)
def test_as_many_dialogues_come_out_as_tables_went_in_and_in_their_order(engine: Any, name: str) -> None:
    scenario = scenario_named(name)
    mixed = [*tables(scenario, 2), *tables(scenario, 2, against_script(name, Role.AGENT))]
    rollout = play(engine, scenario, mixed, SHORT)
    assert [d.context for d in rollout.dialogues] == [t.context for t in mixed]
    assert [set(d.transcripts) for d in rollout.dialogues] == [set(Role)] * 2 + [{Role.AGENT}] * 2
    assert all(d.state.closed is not None for d in rollout.dialogues)
    assert rollout.dropped == 0
    assert play(engine, scenario, [], SHORT).dialogues == []


def test_the_same_seeds_give_the_same_tokens_and_other_seeds_others(new_engine: New, graded: Any) -> None:
    scenario = graded()
    first, again = (play(new_engine(), scenario, tables(scenario, 3), SHORT) for _ in range(2))
    assert tokens_of(first) == tokens_of(again)
    other = [dataclasses.replace(table, seed=table.seed + 100) for table in tables(scenario, 3)]
    assert tokens_of(play(new_engine(), scenario, other, SHORT)) != tokens_of(first)


def test_dialogues_of_one_scenario_differ_by_their_seed(engine: Any, graded: Any) -> None:
    scenario = graded()
    group = [Table(scenario.generate(1), MODELS, seed) for seed in range(4)]
    texts = {tuple(turn.text for turn in d.state.turns) for d in play(engine, scenario, group, SHORT).dialogues}
    assert len(texts) == 4


def test_text_is_never_encoded_again_every_prompt_extends_the_one_before(
    engine: Any, spy_on: New, graded: Any
) -> None:
    """Turn n's prompt and its sampled ids are a prefix of turn n+1's prompt, in each role's own view."""
    scenario, spy = graded(), spy_on(engine)
    rollout = play(spy, scenario, tables(scenario, 1), SHORT)
    [dialogue] = rollout.dialogues
    for role in Role:
        ids = dialogue.transcripts[role].ids
        turns = [call for call in spy.calls if list(call[0].prompt_ids) == ids[: len(call[0].prompt_ids)]]
        assert len(turns) == dialogue.state.turns_by(role) >= 2
        for (request, result), (later, _) in itertools.pairwise(turns):
            said = (*request.prompt_ids, *result.token_ids)
            assert later.prompt_ids[: len(said)] == said


def test_all_open_dialogues_speak_in_one_engine_call(engine: Any, spy_on: New, graded: Any) -> None:
    scenario, spy = graded(), spy_on(engine)
    play(spy, scenario, tables(scenario, 5), SHORT)
    assert [len(batch) for batch in spy.batches] == [5] * scenario.max_turns


def test_training_samples_from_the_whole_distribution_and_stops_at_the_end_of_turn(
    engine: Any, spy_on: New, graded: Any
) -> None:
    scenario, spy = graded(), spy_on(engine)
    play(spy, scenario, tables(scenario, 2), SHORT)
    for request, _ in spy.calls:
        assert request.sampling.temperature == 1.0
        assert request.sampling.stop_token_ids == (engine.tokenizer.eos_token_id,)
        assert request.sampling.seed is not None


def test_a_listener_hears_what_the_scenario_shows_it(reciter: New, tokenizer: Any) -> None:
    """A blocked offer is replaced, a selection is hidden: the other side's tokens hold only what was shown."""
    scenario = scenario_named("telesales")
    context = scenario.generate(0)
    vehicle = context.public["vehicles"][0]["id"]
    engine = reciter(lambda request: f"only today [offer {vehicle} 50]" if request.adapter == "agent@1" else "go on")
    players: dict[Role, Player] = {role: ModelPlayer(f"{role}@1") for role in Role}
    [dialogue] = play(engine, scenario, [Table(context, players, 0)], Sampling(max_tokens=40)).dialogues
    heard = tokenizer.decode(dialogue.transcripts[Role.COUNTERPART].ids)
    blocked = [turn for turn in dialogue.state.turns if turn.blocked]
    assert blocked
    assert all(turn.shown in heard for turn in blocked[:-1])
    assert "only today" not in heard
    assert "only today" in tokenizer.decode(dialogue.transcripts[Role.AGENT].ids)


def test_a_full_context_window_ends_the_talk_and_is_counted(engine: Any, graded: Any) -> None:
    """The dialogue is scored as it stands; the last message is shortened to the room there is."""

    class NarrowEngine:
        def __init__(self, length: int) -> None:
            self.context_length = length

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

    scenario = graded()
    wide = play(engine, scenario, tables(scenario, 1), SHORT).dialogues[0]
    longest = max(len(t.ids) for t in wide.transcripts.values())
    [dialogue] = play(NarrowEngine(longest - 12), scenario, tables(scenario, 1), SHORT).dialogues
    assert dialogue.overflowed
    assert dialogue.state.closed is CloseReason.TURN_LIMIT
    assert len(dialogue.state.turns) < len(wide.state.turns)
    assert not wide.overflowed


# --- A broken episode is dropped and rolled again, never scored ---------------------------------------------------


class BrokenScorer(VehicleTelesales):
    """Raises in its first ``failures`` scorings."""

    max_turns = 2

    def __init__(self, failures: int) -> None:
        self.failures = iter(range(failures))

    def outcome(self, context: Context, state: NegotiationState) -> Outcome:
        if next(self.failures, None) is not None:
            raise ScenarioError("the scorer is broken")
        real = super().outcome(context, state)
        return real.model_copy(update={"rewards": {role: 0.5 for role in Role}})


def test_a_broken_scorer_drops_the_episode_and_rolls_it_again(
    engine: Any, spy_on: New, caplog: pytest.LogCaptureFixture
) -> None:
    spy, scenario = spy_on(engine), BrokenScorer(2)
    with caplog.at_level(logging.WARNING):
        rollout = play(spy, scenario, tables(scenario, 3), SHORT)
    assert rollout.dropped == 2
    assert [d.context.seed for d in rollout.dialogues] == [0, 1, 2]
    assert [d.outcome.rewards for d in rollout.dialogues] == [{role: 0.5 for role in Role}] * 3
    assert sum("the scorer is broken" in record.getMessage() for record in caplog.records) == 2
    assert [len(batch) for batch in spy.batches] == [3, 3, 2, 2]
    assert {call[0].sampling.seed for call in spy.batches[0]}.isdisjoint(
        call[0].sampling.seed for call in spy.batches[2]
    )


def test_an_episode_that_breaks_three_times_fails_the_rollout(engine: Any) -> None:
    scenario = BrokenScorer(100)
    with pytest.raises(RolloutFailed, match="2 of 2 episodes broke 3 times"):
        play(engine, scenario, tables(scenario, 2), SHORT)


@dataclasses.dataclass(frozen=True)
class Stammerer:
    """Fails in its first replies, then hangs up."""

    failures: Iterator[int]
    role: Role = Role.COUNTERPART
    name: str = "stammerer"
    family: str = "stammerers"

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        if next(self.failures, None) is not None:
            raise ZeroDivisionError("no price to divide by")
        return "goodbye [quit]"


def test_a_scripted_player_that_fails_drops_only_its_own_episode(engine: Any, graded: Any) -> None:
    scenario = graded()
    players: dict[Role, Player] = {
        Role.AGENT: ModelPlayer(BASE),
        Role.COUNTERPART: ScriptedPlayer(Stammerer(iter(range(1)))),
    }
    rollout = play(engine, scenario, [*tables(scenario, 1), *tables(scenario, 1, players)], SHORT)
    assert rollout.dropped == 1
    assert [d.players[Role.COUNTERPART] for d in rollout.dialogues] == [BASE, "stammerer"]
    assert rollout.dialogues[1].state.closed is CloseReason.WALKED_AWAY


def test_an_engine_that_fails_is_not_a_broken_episode(engine: Any, graded: Any) -> None:
    """An unknown adapter would fail every time: rolling again would only hide it."""
    scenario = graded()
    players: dict[Role, Player] = {role: ModelPlayer("agent@404") for role in Role}
    with pytest.raises(LookupError, match="agent@404"):
        play(engine, scenario, tables(scenario, 1, players), SHORT)


def test_a_role_that_was_hung_up_on_before_it_spoke_has_no_reward(engine: Any, graded: Any) -> None:
    scenario = graded()
    players: dict[Role, Player] = {
        Role.AGENT: ModelPlayer(BASE),
        Role.COUNTERPART: ScriptedPlayer(Stammerer(iter(()))),
    }
    dialogues = play(engine, scenario, tables(scenario, 8, players), SHORT).dialogues
    rewards: dict[bool, list[float | None]] = {True: [], False: []}
    for dialogue in dialogues:
        silent = dialogue.context.first_speaker is Role.COUNTERPART
        rewards[silent].append(training_view(dialogue, Role.AGENT).reward)
    assert set(rewards[True]) == {None}
    assert rewards[False]
    assert None not in rewards[False]


def test_a_reciters_words_reach_the_other_side_through_the_move_grammar(reciter: New) -> None:
    """Two models can close a deal: proposal, agreement, two matching statements."""
    scenario = scenario_named("deal-or-no-deal")
    context = scenario.generate(3)
    a, b, c = context.public["counts"]
    lines = {
        context.first_speaker: iter([f"[propose {a} 0 0]", f"[select {a} 0 0]"]),
        context.first_speaker.other: iter(["[agree]", f"[select 0 {b} {c}]"]),
    }

    def say(request: GenerationRequest) -> str:
        return next(lines[Role(request.adapter.partition("@")[0])])

    players: dict[Role, Player] = {role: ModelPlayer(f"{role}@1") for role in Role}
    dialogue: Dialogue = play(reciter(say), scenario, [Table(context, players, 0)], Sampling()).dialogues[0]
    assert dialogue.outcome.success
    assert dialogue.outcome.rewards[Role.AGENT] == dialogue.outcome.points[Role.AGENT] / 10
