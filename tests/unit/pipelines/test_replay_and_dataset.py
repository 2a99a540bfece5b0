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
from pipelines import dataset_files as files_module
from pipelines.conversations import count_trainable, summarise
from pipelines.dataset import SMALL_PARTS, DatasetLimits, DatasetWriter
from pipelines.dataset_files import DatasetDamaged, problems, read_manifest, read_versions
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
    parts = sorted((directory / "parts").glob("*/*.parquet"))
    return [row for part in parts for row in pq.ParquetFile(part).read().to_pylist()]


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
    untold: dict[str, list[object]] = {"token_ids": [], "logprobs": [], "redacted": []}
    assert first["turns"] == [
        {"role": "agent", "text": "book for me", "shown": "book for me", **untold},
        {"role": "counterpart", "text": "sure", "shown": "sure", **untold},
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
    assert count_trainable(tmp_path / "data", "deal-or-no-deal") == 1
    assert count_trainable(tmp_path / "data", "telesales") == 0


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
    writer = DatasetWriter(log, tmp_path / "data", DatasetLimits(outcome_grace=timedelta(minutes=5)))
    # Told by when it came here: the clock that stamped it may be hours off.
    came = closed_at + timedelta(hours=3)
    assert writer.consume(now=came).conversations == 0
    assert writer.consume(now=came + timedelta(minutes=4)).conversations == 0
    assert writer.consume(now=came + timedelta(minutes=6)).conversations == 1
    row = rows(tmp_path / "data")[0]
    assert (row["agreed"], row["success"], row["reward_agent"]) == (False, None, None)
    log.append(conversation("a")[4:])
    writer.consume()
    assert [row["success"] for row in rows(tmp_path / "data")] == [False]
    assert read_manifest(tmp_path / "data").revised == 1
    assert problems(tmp_path / "data") == []


@pytest.mark.parametrize("said", [1, 4, 5])
@pytest.mark.parametrize("together", [True, False])
def test_an_erased_conversation_is_dropped_and_stays_dropped(tmp_path: Path, said: int, together: bool) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    events = conversation("a")
    tombstone = events[0].model_copy(update={"sequence": said, "payload": Erased()})
    far = timedelta(days=10_000)
    writer = DatasetWriter(log, tmp_path / "data", DatasetLimits(outcome_grace=far))
    log.append([*events[: min(said, 4)], *conversation("b")])
    if not together:
        writer.consume()
    # A whole conversation with its outcome would be written at once, so both come in one batch.
    log.append([*events[4:said], tombstone])
    assert writer.consume().conversations == (1 if together else 0)
    assert [row["conversation_id"] for row in rows(tmp_path / "data")] == ["b"]
    assert writer.unfinished() == 0
    # Delivered again, as after a crash before the commit.
    writer._assembly.take(log.poll("again", 100), datetime.now(UTC))
    writer.consume()
    assert writer.unfinished() == 0
    writer.close()
    assert [row["conversation_id"] for row in rows(tmp_path / "data")] == ["b"]


def test_a_conversation_erased_after_it_was_written_leaves_files_and_manifest(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    events = conversation("a")
    writer = DatasetWriter(log, tmp_path / "data")
    log.append(conversation("b"))
    writer.consume()
    without = read_manifest(tmp_path / "data").content_hash
    log.append(events)
    assert writer.consume().conversations == 1
    log.append([events[0].model_copy(update={"sequence": len(events), "payload": Erased()})])
    assert writer.consume().removed == 1
    found = read_manifest(tmp_path / "data")
    assert [row["conversation_id"] for row in rows(tmp_path / "data")] == ["b"]
    assert (found.content_hash, found.conversations, found.gone) == (without, 1, {"erased": 1})
    log.append([event.model_copy(update={"sequence": event.sequence + 10}) for event in events])
    writer.consume()
    assert len(rows(tmp_path / "data")) == 1


def test_two_consumers_of_one_folder_write_every_conversation_once(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    first, second = DatasetWriter(log, tmp_path / "data"), DatasetWriter(log, tmp_path / "data")
    events = [conversation(f"c{number}") for number in range(4)]
    for sequence in range(5):
        log.append([each[sequence] for each in events])
        (first, second)[sequence % 2].consume()
    second.consume()
    assert sorted(str(row["conversation_id"]) for row in rows(tmp_path / "data")) == ["c0", "c1", "c2", "c3"]
    assert problems(tmp_path / "data") == []


def test_a_gap_waits_until_its_deadline_and_a_retry_brings_the_conversation_back(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    events = conversation("a")
    writer = DatasetWriter(log, tmp_path / "data", DatasetLimits(gap_deadline=timedelta(hours=1)))
    now = datetime(2030, 1, 1, tzinfo=UTC)
    log.append([*events[:2], *events[3:]])
    assert writer.consume(now=now).set_aside == 0
    assert writer.consume(now=now + timedelta(hours=2)).set_aside == 4
    assert log.dead_letters() == {"event 2 of its conversation did not come in time": 4}
    assert writer.unfinished() == 0
    log.append([events[2]])
    for letter in list(log.each_dead_letter()):
        log.retry(letter)
    assert writer.consume(now=now + timedelta(hours=2)).conversations == 1
    assert rows(tmp_path / "data")[0]["n_turns"] == 2


def test_what_contradicts_itself_becomes_a_dead_letter_and_the_rest_goes_on(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    twice = conversation("twice")
    twice[1] = twice[1].model_copy(update={"payload": twice[0].payload})
    after = conversation("after")
    after[3], after[2] = (after[n].model_copy(update={"sequence": 5 - n}) for n in (2, 3))
    others = conversation("others")
    others[2] = others[2].model_copy(update={"tenant": "another"})
    log.append([*twice, *after, *others, *conversation("good")])
    writer = DatasetWriter(log, tmp_path / "data")
    assert writer.consume().conversations == 1
    assert [row["conversation_id"] for row in rows(tmp_path / "data")] == ["good"]
    assert log.dead_letters() == {
        "it was opened 2 times": 5,
        "it goes on after it was closed": 5,
        "its events are of several tenants": 5,
    }


def test_versions_tell_what_they_held_and_a_second_reading_gives_the_same_hash(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    writer = DatasetWriter(log, tmp_path / "data")
    for number in range(3):
        log.append(conversation(f"c{number}"))
        writer.consume()
        writer.consume()
    assert [version.conversations for version in read_versions(tmp_path / "data")] == [1, 2, 3]
    again = DatasetWriter(log, tmp_path / "again", DatasetLimits(part_rows=2))
    again.consume()
    first, second = read_manifest(tmp_path / "data"), read_manifest(tmp_path / "again")
    assert first.content_hash == second.content_hash == read_versions(tmp_path / "data")[-1].content_hash
    assert first.offsets == second.offsets == {0: 15}


def test_many_small_parts_become_one(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    writer = DatasetWriter(log, tmp_path / "data")
    for number in range(SMALL_PARTS):
        log.append(conversation(f"c{number}"))
        writer.consume()
    assert len(read_manifest(tmp_path / "data").parts) == 1
    assert len(rows(tmp_path / "data")) == SMALL_PARTS
    assert problems(tmp_path / "data") == []


def test_what_is_past_its_retention_leaves(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    writer = DatasetWriter(log, tmp_path / "data", DatasetLimits(retention=timedelta(days=30)))
    closed_at = datetime(2030, 1, 1, tzinfo=UTC)
    log.append(conversation("old", at=closed_at))
    log.append(conversation("new", at=closed_at + timedelta(days=20)))
    assert writer.consume(now=closed_at + timedelta(days=1)).conversations == 2
    assert writer.consume(now=closed_at + timedelta(days=31)).removed == 1
    assert [row["conversation_id"] for row in rows(tmp_path / "data")] == ["new"]


def test_damage_is_named(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    log.append(conversation("a"))
    DatasetWriter(log, tmp_path / "data").consume()
    part = next((tmp_path / "data").glob("parts/*/*.parquet"))
    part.write_bytes(part.read_bytes() + b"x")
    assert ["is not the file that was written" in problem for problem in problems(tmp_path / "data")] == [True]
    part.unlink()
    assert "is gone, and 1 conversations with it" in problems(tmp_path / "data")[0]
    with pytest.raises(DatasetDamaged, match="makes it again from the event log"):
        summarise(tmp_path / "data")


class Crash(Exception):
    pass


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), crashes=st.lists(st.integers(0, 5), max_size=4), size=st.integers(1, 7))
def test_every_conversation_is_written_once_whatever_crashes(
    tmp_path_factory: pytest.TempPathFactory, seed: int, crashes: list[int], size: int
) -> None:
    """Crash points: before the log's commit; before, in the middle of and after the writing of a part; before and
    after that of the manifest."""
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
                writer = DatasetWriter(log, folder / "data", DatasetLimits(batch_events=size, part_rows=2))
                writer.consume()
            except Crash:
                pass
            finally:
                if writer is not None:
                    writer.close()
    assert sorted(str(row["conversation_id"]) for row in rows(folder / "data")) == [f"c{n}" for n in range(6)]
    assert problems(folder / "data") == []
    log.close()


def _crash_at(patch: pytest.MonkeyPatch, point: int | None, log: SqliteEventLog) -> None:
    def crash(*_: object, **__: object) -> None:
        raise Crash

    part, manifest = dataset_module.write_part, dataset_module.write_manifest
    if point == 0:
        patch.setattr(log, "commit", crash)
    elif point == 1:
        patch.setattr(dataset_module, "write_part", crash)
    elif point == 2:
        patch.setattr(files_module.pq.ParquetWriter, "write_table", crash)
    elif point == 3:
        patch.setattr(dataset_module, "write_part", lambda *args: (part(*args), crash()))
    elif point == 4:
        patch.setattr(dataset_module, "write_manifest", crash)
    elif point == 5:
        patch.setattr(dataset_module, "write_manifest", lambda *args: (manifest(*args), crash()))
