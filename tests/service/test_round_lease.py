"""The lease against real processes and a real Postgres: who is killed frees it, who lost it notices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pipelines.round_lease import FileLease, LeaseLost, LeaseTaken, PostgresLease, RoundLease

pytestmark = pytest.mark.service

HOLD = """
import sys, time
from pathlib import Path
from pydantic import SecretStr
from pipelines.round_lease import FileLease, PostgresLease
kind, where = sys.argv[1:]
lease = FileLease(Path(where)) if kind == "file" else PostgresLease(SecretStr(where))
with lease.hold() as held:
    print(held.token, flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(kind: str, where: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the lease, and its token."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, kind, where], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    if request.param == "file":
        return "file", str(tmp_path)
    return "postgres", request.getfixturevalue("database").url


def lease_at(place: tuple[str, str], owner: str | None = None) -> RoundLease:
    kind, where = place
    return FileLease(Path(where), owner) if kind == "file" else PostgresLease(SecretStr(where), owner)


def granted_within(lease: RoundLease, tries: int) -> int:
    """The token, as soon as it is granted. The server notices the end of a process in its own time."""
    for _ in range(tries):
        try:
            with lease.hold() as held:
                held.check()
                return held.token
        except LeaseTaken:
            os.sched_yield()
    raise AssertionError(f"not granted in {tries} tries")


def test_who_is_killed_frees_it_for_the_next(place: tuple[str, str]) -> None:
    with holder(*place) as (process, token):
        with pytest.raises(LeaseTaken, match=str(process.pid)), lease_at(place).hold():
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert granted_within(lease_at(place), 500) == token + 1


def test_one_of_two_has_it_at_any_time(place: tuple[str, str]) -> None:
    with lease_at(place, "a").hold() as held:
        with pytest.raises(LeaseTaken, match="run by a"), lease_at(place, "b").hold():
            pass
        held.check()
    with lease_at(place, "b").hold() as held:
        assert held.token == 2


def test_a_holder_whose_connection_broke_notices_and_the_next_has_it(database: Any) -> None:
    place = ("postgres", database.url)
    with lease_at(place, "a").hold() as held:
        held.check()
        database.kill("sparring round lease")
        assert granted_within(lease_at(place, "b"), 500) == held.token + 1
        for _ in range(2):
            # The second time on a connection that was made anew, and has no lock.
            with pytest.raises(LeaseLost):
                held.check()


def test_a_new_connection_without_the_lock_is_no_lease(database: Any) -> None:
    """Nobody else took it meanwhile: the token alone would not tell."""
    with lease_at(("postgres", database.url)).hold() as held:
        database.kill("sparring round lease")
        for _ in range(2):
            with pytest.raises(LeaseLost):
                held.check()


WORK = """
import sys, time, threading
from datetime import UTC, datetime
from pathlib import Path
from negotiation.catalogue import scenario_named
from negotiation.events import Closed, ConversationEvent, Opened
from negotiation.scenario import CloseReason
from pipelines.config import PipelineSettings
from pipelines.event_log import SqliteEventLog
from pipelines.round_state import Phase, RoundResult, RoundState, round_directory, save_state
from pipelines.worker import Worker
state, rounds, go, url = sys.argv[1:]
settings = PipelineSettings(
    state_dir=state, min_conversations=1, outcome_grace_seconds=0, lease_database=url or None
)
settings.state_dir.mkdir()
settings.rounds_dir.symlink_to(rounds)
log = SqliteEventLog(settings.event_log_path)
context = scenario_named("telesales").generate(1)
payloads = [Opened(context=context, adapter="a"), Closed(reason=CloseReason.ABANDONED)]
log.append([ConversationEvent(tenant="t", conversation_id="c", sequence=n, payload=p, consent=True)
            for n, p in enumerate(payloads)])

def run(progress, *, trigger, lease):
    while not Path(go).exists():
        lease.check()
        time.sleep(0.01)
    result = RoundResult(2, "r", "telesales", 0, 1, 1.0, {}, "report.html")
    done = RoundState(phase=Phase.DONE, version=2, run_id="r", scenario="telesales", champions={}, conversations=1,
                      result=result, finished_at=datetime.now(UTC))
    save_state(round_directory(settings.rounds_dir, 2), done)
    return result

print(Worker(settings, log, run, threading.Event()).work(once=True))
"""


def test_two_workers_started_at_once_run_one_round(place: tuple[str, str], tmp_path: Path) -> None:
    """Neither can leave its round before the other has ended, so two rounds at once would never end."""
    rounds, go = tmp_path / "rounds", tmp_path / "go"
    rounds.mkdir()
    url = place[1] if place[0] == "postgres" else ""
    command = [sys.executable, "-c", WORK]
    processes = [
        subprocess.Popen(
            [*command, str(tmp_path / name), str(rounds), str(go), url], stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    try:
        ended: list[str] = []
        for _ in range(6000):
            if any(process.poll() is not None for process in processes):
                break
            time.sleep(0.01)
        go.touch()
        ended = [process.communicate(timeout=60)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert sorted(ended) == ["0", "1"]
