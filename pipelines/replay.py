"""Publishes a recorded corpus as conversation events, through the same log and pipeline as live traffic.

Each line of the ``dialogues.txt`` format becomes one conversation with ``source="replay"`` and both views. Its id
is derived from tenant, line number and line, so a second replay of the same file publishes nothing twice, and one
that was interrupted goes on where it was. Run it with ``sparring replay FILE``.

Left out on purpose: structured moves within the talk. People wrote plain words, and only the final statement of
the split is structured.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from negotiation.corpus import CorpusDialogue, CorpusError, read_dialogues
from negotiation.deal_or_no_deal import TOTAL_VALUE
from negotiation.event_log import EventSink
from negotiation.events import Closed, ConversationEvent, Message, Opened, OutcomeReported, Payload
from negotiation.moves import Move
from negotiation.roles import Role
from pipelines.event_log import Progress

BATCH_EVENTS = 4000
ADAPTER = "human"
_NAMESPACE = uuid.UUID("0c2a7f5e-9b1d-5a44-8a7e-3d1f6e0b7c52")


@dataclass(frozen=True)
class ReplayReport:
    """What was published; events already in the log count too, they are simply kept once."""

    conversations: int
    events: int


def replay(path: Path, event_log: EventSink, tenant: str, progress: Progress | None = None) -> ReplayReport:
    """Publish every dialogue of ``path``. ``progress`` gets (conversations done, conversations in all).

    Raises CorpusError at the first malformed line, before anything at all is published.
    """
    total = _check(path)
    conversations = events = 0
    batch: list[ConversationEvent] = []
    for dialogue, line in _dialogues(path):
        batch.extend(conversation_events(dialogue, tenant, conversation_id(tenant, dialogue.line, line)))
        conversations += 1
        if len(batch) >= BATCH_EVENTS:
            event_log.append(batch)
            events += len(batch)
            batch = []
            if progress:
                progress(conversations, total)
    if batch:
        event_log.append(batch)
        events += len(batch)
    if progress:
        progress(conversations, total)
    return ReplayReport(conversations, events)


def conversation_id(tenant: str, number: int, line: str) -> str:
    """The same for the same line at the same place of any file, and different per tenant."""
    return str(uuid.uuid5(_NAMESPACE, f"{tenant}\n{number}\n{line.strip()}"))


def conversation_events(dialogue: CorpusDialogue, tenant: str, identity: str) -> list[ConversationEvent]:
    """The dialogue as a service would have published it."""
    share = dialogue.share if dialogue.deal else None
    points = dialogue.points
    agreement = None if share is None else Move(kind="select", arguments=tuple(str(count) for count in share))
    payloads: list[Payload] = [
        Opened(
            context=dialogue.context(),
            adapter=ADAPTER,
            source="replay",
            labels={"corpus": Path(dialogue.source).name, "line": str(dialogue.line)},
        ),
        *(Message(role=said.role, text=said.text, shown=said.text) for said in dialogue.utterances),
        Closed(reason=dialogue.closed, agreement=agreement),
        OutcomeReported(
            agreed=dialogue.deal,
            success=dialogue.deal,
            rewards={role: points[role] / TOTAL_VALUE for role in Role},
            points={role: float(points[role]) for role in Role},
            pareto_optimal=dialogue.pareto_optimal,
            note=dialogue.selection if dialogue.share is None else "",
        ),
    ]
    return [
        ConversationEvent(tenant=tenant, conversation_id=identity, sequence=sequence, payload=payload)
        for sequence, payload in enumerate(payloads)
    ]


def _dialogues(path: Path) -> Iterator[tuple[CorpusDialogue, str]]:
    kept: list[str] = []

    def remembered() -> Iterator[str]:
        for line in _lines(path):
            kept[:] = [line]
            yield line

    for dialogue in read_dialogues(remembered(), str(path)):
        yield dialogue, kept[0]


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise CorpusError(str(path), number, f"not UTF-8 text: {error}") from error


def _check(path: Path) -> int:
    return sum(1 for _ in read_dialogues(_lines(path), str(path)))
