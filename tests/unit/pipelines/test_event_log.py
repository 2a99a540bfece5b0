"""The SQLite event log: order, exactly once, durability across kill -9."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from negotiation.event_log import EventLogUnavailable, positions
from negotiation.events import ConversationEvent, Message
from negotiation.roles import Role
from pipelines.event_log import EventConflict, SqliteEventLog


def message(conversation: str, sequence: int, text: str = "hello") -> ConversationEvent:
    payload = Message(role=Role.AGENT, text=text, shown=text)
    return ConversationEvent(tenant="t", conversation_id=conversation, sequence=sequence, payload=payload)


def identities(log: SqliteEventLog) -> list[str]:
    return [record.event.event_id for record in log.poll("reader", 10_000)]


def test_events_come_back_in_order_at_growing_offsets(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "log" / "events.db")
    events = [message("a", n) for n in range(5)]
    log.append(events)
    records = log.poll("g", 3)
    assert [record.event for record in records] == events[:3]
    log.commit("g", positions(records))
    assert log.lag("g") == 2
    assert [record.event for record in log.poll("g", 10)] == events[3:]
    assert log.lag("another") == 5


def test_offsets_and_events_outlive_the_process_that_wrote_them(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    log.append([message("a", 0), message("a", 1)])
    log.commit("g", positions(log.poll("g", 1)))
    log.close()
    assert [record.event.sequence for record in SqliteEventLog(tmp_path / "events.db").poll("g", 9)] == [1]


def test_a_commit_never_moves_back_nor_past_the_end(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    log.append([message("a", n) for n in range(3)])
    log.commit("g", {0: 3})
    log.commit("g", {0: 1})
    assert log.lag("g") == 0
    with pytest.raises(ValueError, match=r"offset 4, but .* ends at 3"):
        log.commit("g", {0: 4})


def test_the_same_event_again_is_kept_once_though_its_clock_differs(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    log.append([message("a", 0)])
    log.append([message("a", 0), message("a", 1), message("a", 1)])
    assert len(identities(log)) == 2


def test_a_different_event_under_a_used_id_is_refused_and_takes_its_batch_along(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "events.db")
    log.append([message("a", 0)])
    with pytest.raises(EventConflict, match=r"event 0 .* of conversation a differs"):
        log.append([message("b", 0), message("a", 0, "something else")])
    assert identities(log) == [message("a", 0).event_id]


def test_unreadable_records_are_set_aside_and_block_nobody(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    log = SqliteEventLog(path)
    log.append([message("a", 0)])
    with sqlite3.connect(path) as raw:
        for number, body in enumerate(("not json", '{"schema_version": 99}', '{"schema_version": 99}')):
            raw.execute("INSERT INTO events (event_id, fingerprint, body) VALUES (?, x'', ?)", (f"bad{number}", body))
    log.append([message("a", 1)])
    assert [record.event.sequence for record in log.poll("g", 2)] == [0, 1]
    assert sum(log.dead_letters().values()) == 3
    assert set(log.dead_letters().values()) == {1, 2}
    assert "not json" not in " ".join(log.dead_letters())
    log.commit("g", positions(log.poll("g", 2)))
    assert log.lag("g") == 0
    assert sum(log.dead_letters().values()) == 3


def test_a_poll_of_only_unreadable_records_leaves_no_lag_behind(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    log = SqliteEventLog(path)
    with sqlite3.connect(path) as raw:
        raw.execute("INSERT INTO events (event_id, fingerprint, body) VALUES ('x', x'', '{}')")
    assert log.poll("g", 5) == []
    assert log.lag("g") == 0


Batches = st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=6), max_size=8)


@settings(max_examples=30, deadline=None)
@given(batches=Batches, limit=st.integers(1, 5))
def test_whatever_is_appended_and_repeated_is_read_once_in_first_order(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[str, int]]], limit: int
) -> None:
    log = SqliteEventLog(tmp_path_factory.mktemp("log") / "events.db")
    for batch in batches:
        log.append([message(*key) for key in batch])
    seen = []
    while records := log.poll("g", limit):
        assert len(records) <= limit
        seen += [(record.event.conversation_id, record.event.sequence) for record in records]
        log.commit("g", positions(records))
    assert seen == list(dict.fromkeys(key for batch in batches for key in batch))
    log.close()


def test_threads_and_second_handles_lose_nothing(tmp_path: Path) -> None:
    logs = [SqliteEventLog(tmp_path / "events.db") for _ in range(2)]

    def write(worker: int) -> None:
        for sequence in range(20):
            logs[worker % 2].append([message(f"c{worker}", sequence)])

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [(r.event.conversation_id, r.event.sequence) for r in logs[0].poll("g", 1000)]
    assert len(found) == 120
    for worker in range(6):
        assert [sequence for name, sequence in found if name == f"c{worker}"] == list(range(20))


WRITER = """
import sys
from pathlib import Path
from negotiation.event_log import EventLogUnavailable, positions
from negotiation.events import ConversationEvent, Message
from pipelines.event_log import SqliteEventLog
log = SqliteEventLog(Path(sys.argv[1]))
for sequence in range(1_000_000):
    payload = Message(role="agent", text="hello", shown="hello")
    log.append([ConversationEvent(tenant="t", conversation_id="k", sequence=sequence, payload=payload)])
    print(sequence, flush=True)
"""


def test_what_was_acknowledged_before_kill_9_is_there_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    acknowledged = -1
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert writer.stdout is not None
        target = acknowledged + 30
        for line in writer.stdout:
            acknowledged = max(acknowledged, int(line))
            if acknowledged >= target:
                writer.send_signal(signal.SIGKILL)
                break
        acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.strip())])
        writer.stdout.close()
        writer.wait()
    sequences = [record.event.sequence for record in SqliteEventLog(path).poll("g", 100_000)]
    assert sequences == list(range(len(sequences)))
    assert acknowledged + 1 <= len(sequences) <= acknowledged + 2


@pytest.mark.parametrize(
    "garbage", [b"not a database at all, but longer than a header\n" * 9, b"SQLite format 3\0" * 99]
)
def test_a_file_that_is_no_database_is_named_with_the_remedy_and_left_as_it_is(
    tmp_path: Path, garbage: bytes
) -> None:
    path = tmp_path / "events.db"
    path.write_bytes(garbage)
    with pytest.raises(EventLogUnavailable, match=r"events\.db can not be used as the event log .*: restore it"):
        SqliteEventLog(path)
    assert path.read_bytes() == garbage


def test_a_file_damaged_in_the_middle_is_named_by_whatever_meets_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    log = SqliteEventLog(path)
    log.append([message("a", n, "x" * 1000) for n in range(100)])
    log.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    for use in (lambda log: log.poll("g", 200), lambda log: log.append([message("b", 0)]), lambda log: log.lag("g")):
        with pytest.raises(EventLogUnavailable, match=r"events\.db can not be used .*: restore it from a backup"):
            use(SqliteEventLog(path))


def test_a_place_that_can_hold_no_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "events.db").mkdir(parents=True)
    for path in (tmp_path / "file" / "events.db", tmp_path / "folder" / "events.db"):
        with pytest.raises(EventLogUnavailable, match=r"events\.db can not be used .* correct it, or state_dir"):
            SqliteEventLog(path)
