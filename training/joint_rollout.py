"""Joint rollouts: all dialogues advance together, both roles' next messages in one engine call.

Each dialogue keeps one append-only token transcript per role that a model plays. Text is never encoded twice;
what a side hears is what the scenario shows it. An episode that breaks (a scripted player or the scoring
raises) is dropped, logged and rolled again with another seed, never scored.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from negotiation.generation import Engine, GenerationRequest, Sampling
from negotiation.roles import Role
from negotiation.scenario import CloseReason, Context, NegotiationState, Outcome, Scenario
from negotiation.transcript import ChatFormat, Transcript
from training.counterparts import BatchNegotiator, Negotiator

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3


class RolloutFailed(RuntimeError):
    """An episode broke in every attempt."""


@dataclass(frozen=True)
class ModelPlayer:
    """A role spoken by the engine's model with the named adapter."""

    adapter: str

    @property
    def name(self) -> str:
        return self.adapter


@dataclass(frozen=True)
class ScriptedPlayer:
    """A role spoken by a scripted negotiator."""

    negotiator: Negotiator

    @property
    def name(self) -> str:
        return self.negotiator.name


Player = ModelPlayer | ScriptedPlayer


@dataclass(frozen=True)
class Table:
    """A negotiation to be played: its context, who sits in which chair, and the seed of everything random."""

    context: Context
    players: dict[Role, Player]
    seed: int


@dataclass
class Dialogue:
    """A finished negotiation. ``transcripts`` has the roles that a model played."""

    context: Context
    state: NegotiationState
    outcome: Outcome
    transcripts: dict[Role, Transcript]
    players: dict[Role, str]
    overflowed: bool = False


@dataclass
class Rollout:
    """The dialogues of ``play``, in the order of its tables, and how many episodes were dropped on the way."""

    dialogues: list[Dialogue] = field(default_factory=list)
    dropped: int = 0


@dataclass
class _Seat:
    """A table in play."""

    table: Table
    state: NegotiationState
    transcripts: dict[Role, Transcript]
    overflowed: bool = False
    broken: Exception | None = None

    @property
    def open(self) -> bool:
        return self.state.closed is None and self.broken is None

    def seed(self, role: Role) -> str:
        return f"{self.table.seed}:{role}:{len(self.state.turns)}"


def play(engine: Engine, scenario: Scenario, tables: Sequence[Table], sampling: Sampling) -> Rollout:
    """Play every table to its end. Raises RolloutFailed when one breaks three times."""
    rollout = Rollout()
    finished: dict[int, Dialogue] = {}
    waiting = dict(enumerate(tables))
    for attempt in range(MAX_ATTEMPTS):
        retry: dict[int, Table] = {}
        for index, seat in _play_once(engine, scenario, waiting, sampling).items():
            try:
                if seat.broken is not None:
                    raise seat.broken
                outcome = scenario.outcome(seat.table.context, seat.state)
            except Exception as error:
                rollout.dropped += 1
                logger.warning(
                    "dropped an episode of %s (seed %s, attempt %s): %s",
                    scenario.name,
                    seat.table.seed,
                    attempt + 1,
                    error,
                    exc_info=error,
                )
                retry[index] = replace(seat.table, seed=seat.table.seed + 7_919 * (attempt + 1))
                continue
            names = {role: player.name for role, player in seat.table.players.items()}
            finished[index] = Dialogue(
                seat.table.context, seat.state, outcome, seat.transcripts, names, seat.overflowed
            )
        if not retry:
            rollout.dialogues = [finished[index] for index in range(len(tables))]
            return rollout
        waiting = retry
    raise RolloutFailed(f"{len(waiting)} of {len(tables)} episodes broke {MAX_ATTEMPTS} times; the log says why")


def _play_once(engine: Engine, scenario: Scenario, tables: dict[int, Table], sampling: Sampling) -> dict[int, _Seat]:
    chat = ChatFormat(engine.tokenizer)
    sampling = replace(sampling, stop_token_ids=(chat.end_of_turn_id,))
    seats = {index: _sit_down(scenario, chat, table) for index, table in tables.items()}
    while live := [seat for seat in seats.values() if seat.open]:
        speaking: list[tuple[_Seat, Role, GenerationRequest]] = []
        batches: dict[int, tuple[BatchNegotiator, list[tuple[_Seat, Role]]]] = {}
        for seat in live:
            role = seat.state.next_speaker
            player = seat.table.players[role]
            if isinstance(player, ModelPlayer):
                request = _request(engine, seat, role, player.adapter, sampling)
                if request is not None:
                    speaking.append((seat, role, request))
                continue
            if isinstance(player.negotiator, BatchNegotiator):
                batches.setdefault(id(player.negotiator), (player.negotiator, []))[1].append((seat, role))
                continue
            try:
                text = player.negotiator.reply(seat.table.context, seat.state, random.Random(seat.seed(role)))
                _take(scenario, seat, role, text)
            except Exception as error:
                seat.broken = error
        for negotiator, asking in batches.values():
            for (seat, role), answer in zip(asking, _ask_together(negotiator, asking), strict=True):
                try:
                    if isinstance(answer, Exception):
                        raise answer
                    _take(scenario, seat, role, answer)
                except Exception as error:
                    seat.broken = error
        results = engine.generate([request for _, _, request in speaking]) if speaking else []
        for (seat, role, request), result in zip(speaking, results, strict=True):
            transcript = seat.transcripts[role]
            assert tuple(transcript.ids) == request.prompt_ids, "a prompt must be the transcript so far"
            _take(scenario, seat, role, transcript.speak(result.token_ids, result.logprobs))
    return seats


def _ask_together(negotiator: BatchNegotiator, asking: Sequence[tuple[_Seat, Role]]) -> Sequence[str | Exception]:
    """One answer or exception a seat; where the whole batch fails, each seat has failed."""
    requests = [(seat.table.context, seat.state, random.Random(seat.seed(role))) for seat, role in asking]
    try:
        answers = negotiator.reply_many(requests)
        if len(answers) != len(requests):
            raise ValueError(f"{negotiator.name} gave {len(answers)} answers to {len(requests)} requests")
    except Exception as error:
        return [error] * len(requests)
    return answers


def _sit_down(scenario: Scenario, chat: ChatFormat, table: Table) -> _Seat:
    transcripts = {
        role: Transcript(chat, scenario.system_prompt(role, table.context))
        for role, player in table.players.items()
        if isinstance(player, ModelPlayer)
    }
    return _Seat(table, scenario.begin(table.context), transcripts)


def _request(engine: Engine, seat: _Seat, role: Role, adapter: str, sampling: Sampling) -> GenerationRequest | None:
    """The next generation of a role, or None where the context window is full and the talk ends."""
    transcript = seat.transcripts[role]
    if not transcript.ids:
        transcript.open()
    room = min(sampling.max_tokens, engine.context_length - len(transcript.ids))
    if room < 1:
        seat.overflowed = True
        seat.state = seat.state.model_copy(update={"closed": CloseReason.TURN_LIMIT})
        return None
    seed = random.Random(seat.seed(role)).getrandbits(31)
    return GenerationRequest(tuple(transcript.ids), adapter, replace(sampling, max_tokens=room, seed=seed))


def _take(scenario: Scenario, seat: _Seat, role: Role, text: str) -> None:
    seat.state = scenario.advance(seat.table.context, seat.state, role, text)
    listener = seat.transcripts.get(role.other)
    if listener is not None and seat.state.closed is None:
        listener.hear(seat.state.turns[-1].shown)
