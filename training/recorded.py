"""Recorded conversations as a role's model would have seen and spoken them: what supervised learning learns from.

Two sources have one form here: the dataset of finished conversations (a row's context and turns) and the human
corpus of Lewis et al. 2017 (:mod:`negotiation.corpus`). A corpus line becomes a game of :class:`DealOrNoDeal` like
this: utterances stand as they are; the side that wrote ``<selection>`` first ends the talk and says ``[agree]`` as
its turn; then the other side and it state their splits (``[select 1 0 2]``, ``[select none]`` also for
``disconnect``). The line is played through the scenario, so what does not come out as the corpus says is noticed and
counted, never learned.

Left out on purpose: reading files and Parquet (:mod:`sparring.recordings`), and training
(:mod:`training.supervised`).
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from negotiation.authority import SAFE_REPLY
from negotiation.corpus import CorpusDialogue
from negotiation.deal_or_no_deal import DealOrNoDeal, Split, remainder
from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, NegotiationState, Scenario, Turn
from negotiation.transcript import ChatFormat, Transcript

NO_OWN_WORDS = "the role said nothing"
NO_VIEW = "the role's private view is unknown"
TOO_LONG = "longer than the context window"


class TooFewConversations(ValueError):
    """Not enough conversations to learn from and to hold some out. Says how many there are and what to do."""


@dataclass(frozen=True)
class Recorded:
    """A conversation that took place. ``dialogue`` is equal for all views of one conversation."""

    dialogue: str
    context: Context
    turns: tuple[Turn, ...]


@dataclass
class RoleViews:
    """A role's transcripts, and how many conversations were left out by reason."""

    transcripts: list[Transcript] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def split_by_dialogue(
    recorded: Sequence[Recorded], held_out_share: float, seed: int
) -> tuple[list[Recorded], list[Recorded]]:
    """Training and held-out conversations; all views of one dialogue fall on the same side.

    The held-out share is of dialogues, at least one. Raises TooFewConversations for fewer than two dialogues.
    """
    dialogues = sorted({one.dialogue for one in recorded})
    if len(dialogues) < 2:
        raise TooFewConversations(
            f"{len(dialogues)} different conversations, at least 2 are needed (one is held out): record more of them"
        )
    random.Random(f"held out:{seed}").shuffle(dialogues)
    count = min(len(dialogues) - 1, max(1, round(held_out_share * len(dialogues))))
    held_out = set(dialogues[:count])
    return (
        [one for one in recorded if one.dialogue not in held_out],
        [one for one in recorded if one.dialogue in held_out],
    )


def role_views(
    recorded: Iterable[Recorded], role: Role, scenario: Scenario, chat: ChatFormat, context_length: int
) -> RoleViews:
    """The transcripts of ``role``: its own words count as sampled, all else is context.

    Left out and counted: conversations in which the role said nothing or whose view of it is unknown, and those
    of more than ``context_length`` tokens.
    """
    views = RoleViews()
    for one in recorded:
        if role not in one.context.views:
            views.left_out[NO_VIEW] += 1
            continue
        transcript = recite(one, role, scenario, chat)
        if not any(transcript.sampled):
            views.left_out[NO_OWN_WORDS] += 1
        elif len(transcript.ids) > context_length:
            views.left_out[TOO_LONG] += 1
        else:
            views.transcripts.append(transcript)
    return views


def recite(recorded: Recorded, role: Role, scenario: Scenario, chat: ChatFormat) -> Transcript:
    """The conversation from ``role``'s chair, each own turn with its end-of-turn token. Log-probabilities are 0."""
    transcript = Transcript(chat, scenario.system_prompt(role, recorded.context))
    for turn in recorded.turns:
        if turn.role is not role:
            transcript.hear(turn.shown)
            continue
        if not transcript.ids:
            transcript.open()
        own = turn.text.removesuffix(SAFE_REPLY)
        ids = chat.tokenizer.encode(own.rstrip(), add_special_tokens=False)
        # The service's safe reply was put there: the model never said it, so it is not taught to.
        if own == turn.text:
            ids.append(chat.end_of_turn_id)
        transcript.speak(ids, [0.0] * len(ids))
        if own != turn.text:
            transcript.put(f" {SAFE_REPLY}" if own else SAFE_REPLY)
    return transcript


@dataclass
class CorpusGames:
    """Corpus lines as games, and why others are none (reason to number of lines)."""

    games: list[Recorded] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def corpus_games(dialogues: Iterable[CorpusDialogue], role: Role) -> CorpusGames:
    """Every line as a game with the line's own side in ``role``'s chair.

    A line counts if the game ends as the corpus says: same agreement, same points for both sides.
    """
    scenario, found = DealOrNoDeal(), CorpusGames()
    for dialogue in dialogues:
        context, state = play_corpus_dialogue(dialogue, role, scenario)
        if state.closed is None:
            found.left_out["the game is not over after both statements"] += 1
            continue
        outcome = scenario.outcome(context, state)
        expected = {role: dialogue.points[Role.AGENT], role.other: dialogue.points[Role.COUNTERPART]}
        if state.closed is CloseReason.TURN_LIMIT:
            found.left_out[f"more than {scenario.max_turns - 1} utterances, the game's limit"] += 1
        elif outcome.agreed == dialogue.deal and outcome.points == expected:
            found.games.append(Recorded(_identity(dialogue), context, state.turns))
        else:
            found.left_out[f"ends as {state.closed}, in the corpus as {dialogue.closed}"] += 1
    return found


def play_corpus_dialogue(
    dialogue: CorpusDialogue, role: Role, scenario: DealOrNoDeal
) -> tuple[Context, NegotiationState]:
    """Play one line with its own side as ``role``; stops early where the game closes early.

    Where statements differ, a line tells only its own side's; the other's is then made up (it is never shown).
    """
    chairs = {Role.AGENT: role, Role.COUNTERPART: role.other}
    seen = dialogue.context()
    context = seen.model_copy(
        update={
            "first_speaker": chairs[seen.first_speaker],
            "views": {chairs[side]: view for side, view in seen.views.items()},
        }
    )
    own, other = _statements(dialogue)
    spoken = [(chairs[said.role], said.text) for said in dialogue.utterances]
    ends = spoken[-1][0].other if spoken else context.first_speaker
    statements = {role: own, role.other: other}
    spoken += [(ends, "[agree]"), (ends.other, statements[ends.other]), (ends, statements[ends])]
    state = scenario.begin(context)
    for speaker, text in spoken:
        if state.closed is not None:
            break
        state = scenario.advance(context, state, speaker, text)
    return context, state


def _statements(dialogue: CorpusDialogue) -> tuple[str, str]:
    """What this side stated and what the other did, as far as the line tells."""
    none = "[select none]"
    if dialogue.share is None:
        return none, none if dialogue.agree else _select(dialogue.counts)
    rest = remainder(dialogue.counts, dialogue.share)
    return _select(dialogue.share), _select(rest) if dialogue.agree else none


def _select(share: Split) -> str:
    return str(Move(kind="select", arguments=tuple(map(str, share))))


def _identity(dialogue: CorpusDialogue) -> str:
    """The same from both sides: pool, values of whoever spoke first, values of the other, words in order."""
    sides = (dialogue.own, dialogue.other)
    if not dialogue.utterances:
        sides = (min(sides), max(sides))
    elif dialogue.utterances[0].role is Role.COUNTERPART:
        sides = (dialogue.other, dialogue.own)
    words = "\n".join(said.text for said in dialogue.utterances)
    return hashlib.sha256(f"{dialogue.counts}{sides}\n{words}".encode()).hexdigest()
