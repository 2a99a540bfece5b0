"""The worker's loop: when it runs a round, what it shows, how it stops."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from negotiation.catalogue import scenario_named
from negotiation.event_log import EventLogUnavailable, Record
from negotiation.events import Closed, ConversationEvent, Opened, OutcomeReported
from negotiation.roles import Role
from negotiation.scenario import CloseReason
from pipelines.config import PipelineSettings
from pipelines.event_log import SqliteEventLog
from pipelines.round_lease import FileLease, HeldLease
from pipelines.round_state import Phase, Progress, RoundResult, RoundState, round_directory, save_state
from pipelines.triggers import Trigger
from pipelines.worker import Worker, read_status, stop_on_signals


@pytest.fixture
def settings(tmp_path: Path) -> PipelineSettings:
    return PipelineSettings(state_dir=tmp_path, min_conversations=3, poll_seconds=0.01)


@pytest.fixture
def log(settings: PipelineSettings) -> SqliteEventLog:
    return SqliteEventLog(settings.event_log_path)


def converse(log: SqliteEventLog, *names: str) -> None:
    context = scenario_named("telesales").generate(1)
    for name in names:
        payloads = (
            Opened(context=context, adapter="agent@1"),
            Closed(reason=CloseReason.ABANDONED),
            OutcomeReported(agreed=False, success=False),
        )
        log.append(
            [
                ConversationEvent(tenant="t", conversation_id=name, sequence=n, payload=payload, consent=True)
                for n, payload in enumerate(payloads)
            ]
        )


class Rounds:
    """Stands in for training: minutes of it are not what is tested here."""

    def __init__(self, settings: PipelineSettings) -> None:
        self.settings = settings
        self.ran: list[int] = []
        self.triggers: list[Trigger] = []
        self.fails = False

    def __call__(
        self,
        progress: Callable[[Progress], None],
        *,
        trigger: Trigger = Trigger.COUNT,
        lease: HeldLease | None = None,
    ) -> RoundResult:
        self.triggers.append(trigger)
        version = len(self.ran) + 2
        state = RoundState(
            phase=Phase.TRAINING,
            version=version,
            run_id="r",
            scenario="telesales",
            champions={Role.AGENT: 1, Role.COUNTERPART: 1},
            conversations=3 * len(self.ran) + 3,
        )
        directory = round_directory(self.settings.rounds_dir, version)
        save_state(directory, state)
        if self.fails:
            raise RuntimeError("no luck")
        progress(Progress("training", 1, 2, version, {"agent": {"reward": 0.5}}))
        result = RoundResult(version, "r", "telesales", 0, 2, 1.0, {}, "report.html")
        done = {"phase": Phase.DONE, "result": result, "finished_at": datetime.now(UTC)}
        save_state(directory, state.model_copy(update=done))
        self.ran.append(version)
        return result


def test_a_round_runs_when_enough_is_new_and_not_again_until_more_is(
    settings: PipelineSettings, log: SqliteEventLog
) -> None:
    rounds = Rounds(settings)

    def work() -> int:
        return Worker(settings, log, rounds, threading.Event()).work(once=True)

    converse(log, "a", "b")
    assert work() == 0
    converse(log, "c")
    assert work() == 1
    assert work() == 0
    converse(log, "d", "e")
    assert work() == 0
    converse(log, "f")
    assert work() == 1
    status = read_status(settings.worker_status_path)
    assert status is not None
    assert (status.phase, status.conversations, status.pid) == ("stopped", 6, os.getpid())
    assert status.last_round is not None
    assert status.last_round.version == 3
    assert rounds.triggers == [Trigger.COUNT, Trigger.COUNT]
    assert (status.trigger, status.trigger_reason) == (Trigger.COUNT, "3 conversations are new, 3 start a round")


def test_a_round_starts_by_time_when_anything_is_new(settings: PipelineSettings, log: SqliteEventLog) -> None:
    rounds = Rounds(settings)
    settings = settings.model_copy(update={"round_every_hours": 1e-9})
    assert Worker(settings, log, rounds, threading.Event()).work(once=True) == 0
    converse(log, "a")
    assert Worker(settings, log, rounds, threading.Event()).work(once=True) == 1
    assert rounds.triggers == [Trigger.TIME]


def test_while_another_worker_runs_a_round_none_starts_here(settings: PipelineSettings, log: SqliteEventLog) -> None:
    rounds = Rounds(settings)
    converse(log, "a", "b", "c")
    with FileLease(settings.rounds_dir, "other:7").hold():
        assert Worker(settings, log, rounds, threading.Event()).work(once=True) == 0
    status = read_status(settings.worker_status_path)
    assert status is not None
    assert status.trigger_reason == "not here: a round is run by other:7"
    assert Worker(settings, log, rounds, threading.Event()).work(once=True) == 1


def test_two_workers_started_at_once_run_one_round(settings: PipelineSettings, tmp_path: Path) -> None:
    """Each has a dataset of its own, as on two machines; they share the rounds folder."""
    other = settings.model_copy(update={"state_dir": tmp_path / "other"})
    settings.rounds_dir.mkdir()
    other.state_dir.mkdir()
    other.rounds_dir.symlink_to(settings.rounds_dir)
    logs = [SqliteEventLog(each.event_log_path) for each in (settings, other)]
    for each in logs:
        converse(each, "a", "b", "c")
    rounds, refused, stop = Rounds(settings), threading.Event(), threading.Event()
    inside: list[int] = []

    def run(progress: Callable[[Progress], None], **order: Any) -> RoundResult:
        inside.append(1)
        assert refused.wait(30), "the other worker was not refused"
        return rounds(progress, **order)

    workers = [Worker(each, log, run, stop) for each, log in zip((settings, other), logs, strict=True)]
    threads = [threading.Thread(target=worker.work) for worker in workers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = [read_status(each.worker_status_path) for each in (settings, other)]
        if any(status and "not here" in (status.trigger_reason or "") for status in found):
            refused.set()
        if rounds.ran and all(status and status.trigger_reason == "0 of 3 conversations are new" for status in found):
            stop.set()
        threads[0].join(0.005)
    assert (inside, rounds.ran) == ([1], [2])


def test_an_interrupted_round_goes_on_at_once(settings: PipelineSettings, log: SqliteEventLog) -> None:
    rounds = Rounds(settings)
    converse(log, "a", "b", "c")
    rounds.fails = True
    with pytest.raises(RuntimeError, match="no luck"):
        Worker(settings, log, rounds, threading.Event()).work(once=True)
    status = read_status(settings.worker_status_path)
    assert status is not None
    assert status.last_error == "RuntimeError: no luck"
    rounds.fails = False
    assert Worker(settings, log, rounds, threading.Event()).work(once=True) == 1


def test_a_failing_round_does_not_stop_the_dataset(settings: PipelineSettings, log: SqliteEventLog) -> None:
    stop = threading.Event()
    rounds = Rounds(settings)
    attempts: list[int] = []

    def failing(progress: Callable[[Progress], None], **order: Any) -> RoundResult:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            converse(log, "d")
            raise RuntimeError("no luck")
        stop.set()
        return rounds(progress, **order)

    converse(log, "a", "b", "c")
    Worker(settings, log, failing, stop).work()
    assert len(attempts) == 2
    status = read_status(settings.worker_status_path)
    assert status is not None
    assert status.conversations == 4


def test_sigterm_during_a_round_ends_the_work_cleanly(settings: PipelineSettings, log: SqliteEventLog) -> None:
    converse(log, "a", "b", "c")
    stop = threading.Event()

    def long_round(progress: Callable[[Progress], None], **_: Any) -> RoundResult:
        os.kill(os.getpid(), signal.SIGTERM)
        progress(Progress("training", 1, 1000, 2))
        raise AssertionError("went on after the signal")

    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals(stop):
        assert Worker(settings, log, long_round, stop).work() == 0
    assert signal.getsignal(signal.SIGTERM) is before
    status = read_status(settings.worker_status_path)
    assert status is not None
    assert (status.phase, status.last_error) == ("stopped", None)


def test_no_status_before_the_first_start(tmp_path: Path) -> None:
    assert read_status(tmp_path / "worker-status.json") is None


class AwayLog(SqliteEventLog):
    """Away at those polls, counted from 0, that ``away`` names."""

    away: frozenset[int] = frozenset()
    polls = 0
    at_poll: Callable[[int], None] = staticmethod(lambda number: None)

    def poll(self, group: str, limit: int) -> list[Record]:
        number, self.polls = self.polls, self.polls + 1
        self.at_poll(number)
        if number in self.away:
            raise EventLogUnavailable("Kafka at nowhere:9092 could not be reached: start the brokers")
        return super().poll(group, limit)


@pytest.mark.parametrize("once", [True, False])
def test_a_log_that_is_away_at_the_start_ends_the_worker(settings: PipelineSettings, once: bool) -> None:
    log = AwayLog(settings.event_log_path)
    log.away = frozenset({0})
    with pytest.raises(EventLogUnavailable, match="start the brokers"):
        Worker(settings, log, Rounds(settings), threading.Event()).work(once=once)


def test_a_log_that_goes_away_later_is_waited_for(settings: PipelineSettings) -> None:
    log, stop = AwayLog(settings.event_log_path), threading.Event()
    log.away = frozenset({1, 2})
    shown: list[tuple[str, str | None]] = []

    def look(number: int) -> None:
        status = read_status(settings.worker_status_path)
        if status is not None:
            shown.append((status.phase, status.last_error))
        if number == 5:
            stop.set()

    log.at_poll = look
    assert Worker(settings, log, Rounds(settings), stop).work() == 0
    assert ("waiting", "Kafka at nowhere:9092 could not be reached: start the brokers") in shown
    assert shown[-1] == ("idle", None)
