"""A role's training view: masked by who sampled a token, never by chat role, cut after its last own token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from negotiation.scenario import CloseReason, NegotiationState, Outcome
from negotiation.transcript import ChatFormat, Transcript
from training.joint_rollout import Dialogue
from training.views import training_view

SYSTEM = "You sell vehicles."


def dialogue(**transcripts: Transcript) -> Dialogue:
    """A finished dialogue with these transcripts; the agent is rewarded 0.75, the counterpart -0.5."""
    outcome = Outcome(
        agreed=False,
        success=False,
        rewards={Role.AGENT: 0.75, Role.COUNTERPART: -0.5},
        points={Role.AGENT: 0, Role.COUNTERPART: 0},
    )
    state = NegotiationState(closed=CloseReason.TURN_LIMIT)
    context = scenario_named("telesales").generate(0)
    return Dialogue(context, state, outcome, {Role(k): t for k, t in transcripts.items()}, {})


def sampled_of(ids: list[int], mask: list[int]) -> list[int]:
    return [token for token, own in zip(ids, mask, strict=True) if own]


@given(
    turns=st.lists(
        st.tuples(st.text(max_size=20), st.lists(st.integers(0, 479), min_size=1, max_size=8)), min_size=1, max_size=5
    ),
    speaks_first=st.booleans(),
    ends_by_listening=st.booleans(),
)
def test_a_view_is_the_transcript_up_to_its_last_own_token(
    tokenizer: Any, turns: list[tuple[str, list[int]]], speaks_first: bool, ends_by_listening: bool
) -> None:
    transcript = Transcript(ChatFormat(tokenizer), SYSTEM)
    spoken: list[int] = []
    lengths = [0]
    for number, (heard, said) in enumerate(turns):
        if number or not speaks_first:
            transcript.hear(heard)
        else:
            transcript.open()
        transcript.speak(said, [-float(token + 1) for token in said])
        spoken += said
        lengths.append(len(transcript.ids))
    if ends_by_listening:
        transcript.hear("goodbye")
    view = training_view(dialogue(agent=transcript), Role.AGENT)
    assert view.prompt_ids + view.completion_ids == transcript.ids[: lengths[-1]]
    assert sampled_of(view.completion_ids, view.env_mask) == spoken
    assert view.logprobs == [
        -float(token + 1) if own else 0.0 for token, own in zip(view.completion_ids, view.env_mask, strict=True)
    ]
    assert view.env_mask[0] == view.env_mask[-1] == 1
    assert view.reward == 0.75


def test_mask_by_provenance_both_roles_are_the_assistant_of_their_own_view(tokenizer: Any) -> None:
    """One message is an action in its speaker's view and context in the other's, both under the same marks."""
    chat = ChatFormat(tokenizer)
    agent, counterpart = Transcript(chat, SYSTEM), Transcript(chat, "You buy a vehicle.")
    said = tokenizer.encode("hello there", add_special_tokens=False)
    agent.open()
    counterpart.hear(agent.speak([*said, chat.end_of_turn_id], [-1.0] * (len(said) + 1)))
    answer = tokenizer.encode("what do you have", add_special_tokens=False)
    agent.hear(counterpart.speak([*answer, chat.end_of_turn_id], [-2.0] * (len(answer) + 1)))
    agent.speak([chat.end_of_turn_id], [-3.0])
    ours, theirs = (
        training_view(dialogue(agent=agent, counterpart=counterpart), role) for role in (Role.AGENT, Role.COUNTERPART)
    )
    assert sampled_of(ours.completion_ids, ours.env_mask) == [*said, chat.end_of_turn_id, chat.end_of_turn_id]
    assert sampled_of(theirs.completion_ids, theirs.env_mask) == [*answer, chat.end_of_turn_id]
    assert "what do you have" in tokenizer.decode(ours.completion_ids)
    assert "hello there" in tokenizer.decode(theirs.prompt_ids)
    assert set(ours.logprobs) == {-1.0, 0.0, -3.0}
    assert set(theirs.logprobs) == {-2.0}
    assert (ours.reward, theirs.reward) == (0.75, -0.5)


def test_a_synthetic_end_of_turn_is_not_a_sampled_token(tokenizer: Any) -> None:
    """A message cut at its token limit gets its end of turn from the template, so nobody is credited for it."""
    chat = ChatFormat(tokenizer)
    said = tokenizer.encode("cut off in the middle", add_special_tokens=False)
    masks = []
    for sampled in (said, [*said, chat.end_of_turn_id]):
        transcript = Transcript(chat, SYSTEM)
        transcript.open()
        transcript.speak(sampled, [-1.0] * len(sampled))
        transcript.hear("go on")
        transcript.speak([chat.end_of_turn_id], [-1.0])
        view = training_view(dialogue(agent=transcript), Role.AGENT)
        assert view.completion_ids[len(said)] == chat.end_of_turn_id
        masks.append(view.env_mask[len(said)])
        assert sum(view.env_mask) == len(sampled) + 1
    assert masks == [0, 1]


def test_pad_is_not_the_end_of_turn(tokenizer: Any) -> None:
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert ChatFormat(tokenizer).end_of_turn_id == tokenizer.eos_token_id


@pytest.mark.parametrize("heard", [False, True])
def test_a_role_that_never_spoke_has_no_reward_and_no_action(tokenizer: Any, heard: bool) -> None:
    transcript = Transcript(ChatFormat(tokenizer), SYSTEM)
    if heard:
        transcript.hear("no thank you, goodbye")
    view = training_view(dialogue(agent=transcript), Role.AGENT)
    assert view.reward is None
    assert sum(view.env_mask) == 0
    assert len(view.completion_ids) == len(view.env_mask) == len(view.logprobs) == 1
    assert SYSTEM in tokenizer.decode(view.prompt_ids)


def test_a_role_that_no_model_played_has_no_view(tokenizer: Any) -> None:
    transcript = Transcript(ChatFormat(tokenizer), SYSTEM)
    with pytest.raises(KeyError):
        training_view(dialogue(agent=transcript), Role.COUNTERPART)
