"""Where conversations to learn from come from (the dataset, or a corpus file that the user names), and the learning.

Replayed corpora in the dataset are left out, as in a round: they are somebody else's data, and whoever wants to learn
from them says so by naming the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negotiation.roles import Role
from sparring.errors import MisuseError

if TYPE_CHECKING:
    from negotiation.adapter import AdapterName
    from sparring.settings import Settings
    from training.recorded import Recorded
    from training.supervised import SupervisedProgress, SupervisedReport, SupervisedSettings

REPLAYED = "replayed from a corpus (name its file to learn from it)"
NO_CONSENT = "without the customer's consent"


@dataclass
class Recordings:
    """Conversations of one scenario, and how many were left out by reason."""

    scenario: str
    conversations: list[Recorded] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def from_corpus(file: Path, role: Role) -> Recordings:
    """Every line of a ``dialogues.txt`` with its own side in ``role``'s chair. Raises CorpusError."""
    from negotiation.corpus import read_dialogues
    from negotiation.deal_or_no_deal import DealOrNoDeal
    from training.recorded import corpus_games

    found = corpus_games(read_dialogues(_lines(file), str(file)), role)
    if not found.games:
        raise MisuseError(
            f"{file} holds no dialogue to learn from ({describe(found.left_out) or 'it is empty'}): "
            "name a file in the dialogues.txt format"
        )
    return Recordings(DealOrNoDeal.name, found.games, found.left_out)


def _lines(file: Path) -> Iterator[str]:
    from negotiation.corpus import CorpusError

    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise CorpusError(str(file), number, f"not UTF-8 text: {error}") from error


def from_log(settings: Settings, progress: Callable[[int, int], None]) -> Recordings:
    """Bring the dataset up to date with the event log, then read it. ``progress``: events done, events in all."""
    from sparring.compose import open_dataset_writer, open_event_log

    log = open_event_log(settings)
    try:
        writer = open_dataset_writer(settings, log)
        try:
            writer.consume(progress)
        finally:
            writer.close()
    finally:
        log.close()
    return from_dataset(settings.pipelines.datasets_dir, settings.pipelines.scenario)


def from_dataset(directory: Path, scenario: str) -> Recordings:
    """The dataset's finished conversations of a scenario. Raises MisuseError if there are none."""
    from negotiation.scenario import Context, Turn
    from pipelines.conversations import rows
    from training.recorded import Recorded

    found = Recordings(scenario)
    for row in rows(directory, ["conversation_id", "source", "consent", "context", "turns"], scenario=scenario):
        if row["source"] == "replay" or not row["consent"]:
            found.left_out[REPLAYED if row["source"] == "replay" else NO_CONSENT] += 1
            continue
        turns = tuple(Turn(role=Role(turn["role"]), text=turn["text"], shown=turn["shown"]) for turn in row["turns"])
        context = Context.model_validate_json(row["context"])
        found.conversations.append(Recorded(row["conversation_id"], context, turns))
    if not found.conversations:
        left = f" ({describe(found.left_out)})" if found.left_out else ""
        raise MisuseError(
            f"{directory} has no finished conversations of {scenario} to learn from{left}: serve some "
            "(`sparring serve`), or name a corpus file with --corpus"
        )
    return found


def describe(left_out: Counter[str]) -> str:
    """``12 longer than the context window, 3 ...``; empty for nothing left out."""
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(left_out.items()))


def learn(
    settings: Settings,
    recordings: Recordings,
    name: AdapterName,
    output: Path,
    options: Mapping[str, Any],
    progress: Callable[[SupervisedProgress], None],
) -> SupervisedReport:
    """Train ``output/<name>`` on the base model of the settings; options that are None keep their default.

    What cannot be learned from is added to ``recordings.left_out``. Raises MisuseError.
    """
    from transformers import AutoConfig, AutoTokenizer

    from negotiation.catalogue import scenario_named
    from negotiation.transcript import ChatFormat
    from sparring.compose import base_reference
    from sparring.models import resolve_base_model
    from training.recorded import role_views, split_by_dialogue
    from training.supervised import Row, own_row, supervise

    chosen = _settings(settings, options)
    model = resolve_base_model(settings.base_model)
    chat = ChatFormat(AutoTokenizer.from_pretrained(model.path))
    context_length = int(AutoConfig.from_pretrained(model.path).max_position_embeddings)
    rows: list[list[Row]] = []
    try:
        for part in split_by_dialogue(recordings.conversations, chosen.held_out_share, chosen.seed):
            views = role_views(part, name.role, scenario_named(recordings.scenario), chat, context_length)
            recordings.left_out.update(views.left_out)
            rows.append([own_row(transcript) for transcript in views.transcripts])
        train, held_out = rows
        return supervise(base_reference(model), name, train, held_out, chosen, output, progress)
    except (ValueError, FileExistsError, FloatingPointError) as error:
        left = f"; left out: {describe(recordings.left_out)}" if recordings.left_out else ""
        raise MisuseError(f"{error}{left}") from error


def _settings(settings: Settings, options: Mapping[str, Any]) -> SupervisedSettings:
    from pydantic import ValidationError

    from training.supervised import SupervisedSettings

    training = settings.training
    given = {key: value for key, value in options.items() if value is not None}
    try:
        return SupervisedSettings(**given, threads=training.threads, adapter=training.adapter)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])).replace("_", "-")
        raise MisuseError(f"--{key} {first['input']!r} will not do: {first['msg']}") from error
