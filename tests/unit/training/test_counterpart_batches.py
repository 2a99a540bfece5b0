"""Counterparts that answer many dialogues together are asked once a pass, and fail one seat at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from negotiation.generation import BASE, Sampling
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, NegotiationState
from training.counterparts import BatchNegotiator, ReplyRequest, negotiators
from training.joint_rollout import ModelPlayer, Player, Rollout, RolloutFailed, ScriptedPlayer, Table, play
from training.wording import StrangeNegotiator

SHORT = Sampling(max_tokens=8)


class Alone:
    """Says how many turns there were, and a number of its own."""

    name, family, role = "alone", "tests", Role.COUNTERPART

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        return f"turn {len(state.turns)} of scenario {context.seed}: {rng.random()}"


class Together(Alone):
    """The same, to all at once. Fails once in each of the scenarios ``failing``."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.failing, self.batches = list(failing), list[int]()

    def reply_many(self, requests: Sequence[ReplyRequest]) -> list[str | Exception]:
        self.batches.append(len(requests))
        return [self.answer(*request) for request in requests]

    def answer(self, context: Context, state: NegotiationState, rng: random.Random) -> str | Exception:
        if context.seed in self.failing:
            self.failing.remove(context.seed)
            return TimeoutError("the endpoint is busy")
        return self.reply(context, state, rng)


def rolled(engine: Any, scenario: Any, player: Any, count: int = 4) -> Rollout:
    players: dict[Role, Player] = {Role.AGENT: ModelPlayer(BASE), Role.COUNTERPART: ScriptedPlayer(player)}
    contexts = [scenario.generate(seed).model_copy(update={"first_speaker": Role.AGENT}) for seed in range(count)]
    return play(engine, scenario, [Table(context, players, seed) for seed, context in enumerate(contexts)], SHORT)


def said(rollout: Rollout) -> list[list[str]]:
    return [[turn.text for turn in dialogue.state.turns] for dialogue in rollout.dialogues]


def test_all_seats_are_asked_in_one_call_a_pass_and_hear_what_each_alone_would_have_heard(
    new_engine: Any, graded: Any
) -> None:
    together = Together()
    batched = rolled(new_engine(), graded(), together)
    assert together.batches == [4, 4]
    assert said(batched) == said(rolled(new_engine(), graded(), Alone()))
    assert all(dialogue.state.closed is CloseReason.TURN_LIMIT for dialogue in batched.dialogues)


def test_an_answer_that_failed_drops_its_own_episode_only(engine: Any, graded: Any) -> None:
    together = Together(failing=[2])
    rollout = rolled(engine, graded(), together)
    assert rollout.dropped == 1
    assert together.batches == [4, 3, 1, 1]
    assert [dialogue.context.seed for dialogue in rollout.dialogues] == [0, 1, 2, 3]


@pytest.mark.parametrize("fault", ["raises", "too few"])
def test_a_batch_that_fails_as_a_whole_breaks_its_seats(engine: Any, graded: Any, fault: str) -> None:
    class Faulty(Together):
        def reply_many(self, requests: Sequence[ReplyRequest]) -> list[str | Exception]:
            if fault == "raises":
                raise ConnectionError("the line is dead")
            return super().reply_many(requests)[:-1]

    with pytest.raises(RolloutFailed, match="4 of 4 episodes broke"):
        rolled(engine, graded(), Faulty())


def test_scripted_negotiators_are_asked_one_by_one_as_ever() -> None:
    for player in negotiators("telesales", Role.COUNTERPART, "train"):
        assert not isinstance(player, BatchNegotiator)
        assert not isinstance(StrangeNegotiator(player), BatchNegotiator)
