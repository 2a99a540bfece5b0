"""Corpus to dataset through the event log; exactly once however often it is interrupted."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from negotiation.corpus import CorpusError
from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.events import Closed, ConversationEvent, Erased, Message, Opened, OutcomeReported, Payload
from negotiation.roles import Role
from negotiation.scenario import CloseReason
from pipelines import dataset as dataset_module
from pipelines.conversations import count_trainable, finished_contexts, summarise
from pipelines.dataset import DatasetInUse, DatasetWriter
from pipelines.event_log import SqliteEventLog
from pipelines.replay import replay

LINES = (
    "1 4 4 1 1 2 YOU: book for me <eos> THEM: sure <eos> YOU: "
    "<selection> item0=1 item1=0 item2=0 <eos> reward=4 agree 1 2 4 2 1 0",
    "1 2 4 2 1 0 THEM: book for me <eos> YOU: sure <eos> THEM: "
    "<selection> item0=0 item1=4 item2=1 <eos> reward=8 agree 1 4 4 1 1 2",
    "1 4 4 1 1 2 THEM: hm <eos> YOU: no <eos> THEM: "
    "<selection> no agreement <eos> reward=no agreement agree 1 2 4 2 1 0",
    "1 4 4 1 1 2 YOU: hm <eos> THEM: <selection> disconnect <eos> reward=disconnect disagree 1 2 4 2 1 0",
)


def conversation(
    name: str, *, outcome: bool = True, source: str = "live", at: datetime | None = None, consent: bool = True
):
    context = DealOrNoDeal().generate(3)
    payloads: list[Payload] = [
        Opened(
            context=context.model_copy(update={"views": {Role.AGENT: context.views[Role.AGENT]}}),
            adapter="agent@1",
            source=source,
        ),
        Message(role=Role.AGENT, text="hello", shown="hello"),
        Message(role=Role.COUNTERPART, text="bye", shown="bye"),
        Closed(reason=CloseReason.ABANDONED),
    ]
    if outcome:
        view = context.views[Role.COUNTERPART]
        payloads.append(OutcomeReported(agreed=False, success=False, points={Role.AGENT: 0}, counterpart_view=view))
    moment = at or datetime(2030, 1, 1, tzinfo=UTC)
    return [
        ConversationEvent(
            tenant="t", conversation_id=name, sequence=n, occurred_at=moment, consent=consent, payload=payload
        )
        for n, payload in enumerate(payloads)
    ]


def rows(directory: Path) -> list[dict[str, object]]:
    return [row for part in sorted(directory.glob("part-*.parquet")) for row in pq.read_table(part).to_pylist()]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "talk.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def test_a_corpus_becomes_a_dataset_whose_summary_is_right(corpus: Path, tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    seen: list[tuple[int, int]] = []
    assert replay(corpus, log, "t", lambda done, total: seen.append((done, total))).conversations == 4
    assert seen[-1] == (4, 4)
    writer = DatasetWriter(log, tmp_path / "data")
    assert writer.consume().conversations == 4
    figures = summarise(tmp_path / "data")
    assert (figures.views, figures.deals, figures.agreed_on_no_deal) == (4, 2, 1)
    assert (figures.deal_rate, figures.mean_points, figures.mean_points_of_deals) == (0.5, 3.0, 6.0)
    assert figures.pareto_rate == 0.0
    assert str(figures) == (
        "4 views, 50.00 % deals, 3.000 points over all, 6.000 over agreed, 0.00 % Pareto-optimal, 1 agreed on no deal"
    )
    assert summarise(tmp_path / "data", source="live").views == 0
    first = next(row for row in rows(tmp_path / "data") if json.loads(str(row["labels"]))["line"] == "1")
    assert first["turns"] == [
        {"role": "agent", "text": "book for me", "shown": "book for me"},
        {"role": "counterpart", "text": "sure", "shown": "sure"},
    ]
    assert (first["points_agent"], first["points_counterpart"], first["reward_agent"]) == (4.0, 8.0, 0.4)


def test_replaying_again_adds_nothing(corpus: Path, tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    writer = DatasetWriter(log, tmp_path / "data")
    for _ in range(2):
        replay(corpus, log, "t")
        writer.consume()
    assert len(rows(tmp_path / "data")) == 4
    replay(corpus, log, "another tenant")
    writer.consume()
    assert len(rows(tmp_path / "data")) == 8


@pytest.mark.parametrize("bad", [b"1 2 3", b"\xff\xfe"])
def test_a_malformed_corpus_publishes_nothing_at_all(corpus: Path, tmp_path: Path, bad: bytes) -> None:
    corpus.write_bytes(corpus.read_bytes() + bad)
    log = SqliteEventLog(tmp_path / "events.db")
    with pytest.raises(CorpusError, match=r"talk\.txt:5: "):
        replay(corpus, log, "t")
    assert log.lag("g") == 0


def test_replayed_corpora_and_talks_without_consent_are_never_training_contexts(corpus: Path, tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    replay(corpus, log, "t")
    log.append(conversation("live"))
    log.append(conversation("without consent", consent=False))
    log.append(conversation("a person practises", consent=False, source="simulated"))
    DatasetWriter(log, tmp_path / "data").consume()
    found = finished_contexts(tmp_path / "data", "deal-or-no-deal", limit=10)
    assert [identity for identity, _ in found] == ["live"]
    assert found[0][1] == DealOrNoDeal().generate(3)
    assert count_trainable(tmp_path / "data", "deal-or-no-deal") == 1
    assert finished_contexts(tmp_path / "data", "telesales", limit=10) == []


def test_an_unfinished_conversation_survives_a_restart(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    events = conversation("a")
    log.append(events[:2])
    first = DatasetWriter(log, tmp_path / "data")
    assert first.consume().conversations == 0
    first.close()
    log.append(events[2:])
    second = DatasetWriter(log, tmp_path / "data")
    assert second.consume().conversations == 1
    assert rows(tmp_path / "data")[0]["n_turns"] == 2


def test_a_closed_conversation_waits_for_its_outcome_for_the_grace_period(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    closed_at = datetime(2030, 1, 1, 12, tzinfo=UTC)
    log.append(conversation("a", outcome=False, at=closed_at))
    writer = DatasetWriter(log, tmp_path / "data", outcome_grace=timedelta(minutes=5))
    assert writer.consume(now=closed_at + timedelta(minutes=4)).conversations == 0
    assert writer.consume(now=closed_at + timedelta(minutes=6)).conversations == 1
    row = rows(tmp_path / "data")[0]
    assert (row["agreed"], row["success"], row["reward_agent"]) == (False, None, None)
    log.append(conversation("a")[4:])
    writer.consume()
    assert writer.late_events() == 1
    assert len(rows(tmp_path / "data")) == 1


@pytest.mark.parametrize("said", [1, 4, 5])
@pytest.mark.parametrize("together", [True, False])
def test_an_erased_conversation_is_dropped_and_stays_dropped(tmp_path: Path, said: int, together: bool) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    events = conversation("a")
    tombstone = events[0].model_copy(update={"sequence": said, "payload": Erased()})
    far = timedelta(days=10_000)
    writer = DatasetWriter(log, tmp_path / "data", outcome_grace=far)
    log.append([*events[: min(said, 4)], *conversation("b")])
    if not together:
        writer.consume()
    # A whole conversation with its outcome would be written at once, so both come in one batch.
    log.append([*events[4:said], tombstone])
    assert writer.consume().conversations == (1 if together else 0)
    assert [row["conversation_id"] for row in rows(tmp_path / "data")] == ["b"]
    assert writer.unfinished() == 0
    # Delivered again, as after a crash before the commit.
    writer._take(log.poll("again", 100))
    writer.consume()
    assert writer.unfinished() == 0
    writer.close()
    assert [row["conversation_id"] for row in rows(tmp_path / "data")] == ["b"]


def test_a_conversation_erased_after_it_was_written_counts_as_late(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    events = conversation("a")
    log.append(events)
    writer = DatasetWriter(log, tmp_path / "data")
    assert writer.consume().conversations == 1
    log.append([events[0].model_copy(update={"sequence": len(events), "payload": Erased()})])
    assert writer.consume().conversations == 0
    assert writer.late_events() == 1


def test_a_second_writer_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    first = DatasetWriter(log, tmp_path / "data")
    with pytest.raises(DatasetInUse, match="another process"):
        DatasetWriter(log, tmp_path / "data")
    first.close()
    DatasetWriter(log, tmp_path / "data").close()


class Crash(Exception):
    pass


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), crashes=st.lists(st.integers(0, 3), max_size=4), size=st.integers(1, 7))
def test_every_conversation_is_written_once_whatever_crashes(
    tmp_path_factory: pytest.TempPathFactory, seed: int, crashes: list[int], size: int
) -> None:
    """Crash points: before the log's commit, before, in the middle of and after the writing of a part."""
    folder = tmp_path_factory.mktemp("crash")
    log = SqliteEventLog(folder / "events.db")
    rng = random.Random(seed)
    queues = [conversation(f"c{n}") for n in range(6)]
    while any(queues):
        queue = rng.choice([queue for queue in queues if queue])
        log.append([queue.pop(0)])

    for point in [*crashes, None]:
        with pytest.MonkeyPatch.context() as patch:
            _crash_at(patch, point, log)
            writer = None
            try:
                writer = DatasetWriter(log, folder / "data", batch_events=size, part_rows=2)
                writer.consume()
            except Crash:
                pass
            finally:
                if writer is not None:
                    writer.close()
    assert sorted(str(row["conversation_id"]) for row in rows(folder / "data")) == [f"c{n}" for n in range(6)]
    assert not list((folder / "data").glob(".*.tmp"))
    log.close()


def _crash_at(patch: pytest.MonkeyPatch, point: int | None, log: SqliteEventLog) -> None:
    def crash(*_: object, **__: object) -> None:
        raise Crash

    write = dataset_module._write_durably
    if point == 0:
        patch.setattr(log, "commit", crash)
    elif point == 1:
        patch.setattr(dataset_module, "_write_durably", crash)
    elif point == 2:
        patch.setattr(dataset_module.pq, "write_table", crash)
    elif point == 3:
        patch.setattr(dataset_module, "_write_durably", lambda *args: (write(*args), crash()))
