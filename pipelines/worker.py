"""The worker: keeps the dataset up to date with the event log, and runs a round when enough is new.

One process, one thread, one loop. Its state is on disk (committed offsets, the assembly, the round's folder), so it
may be killed at any time. What it is doing right now stands in ``worker-status.json``, replaced atomically, for
whoever draws a progress bar. Run it with ``sparring worker``.

Left out on purpose: several workers on one dataset (the dataset's lease refuses the second), and starting
training elsewhere: ``run`` is handed in, so it may as well submit a job.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from negotiation.event_log import EventLog, EventLogUnavailable
from pipelines.config import PipelineSettings
from pipelines.conversations import count_trainable
from pipelines.curated_conversations import signed_outcomes
from pipelines.dataset import DatasetLimits, DatasetWriter
from pipelines.round_lease import HeldLease, LeaseTaken, LeaseUnavailable, round_lease
from pipelines.round_state import Progress, RoundResult, RoundState, agent_champion, latest_state, write_atomically
from pipelines.triggers import Evidence, Finding, Trigger, find_trigger

log = logging.getLogger(__name__)
_STATUS_EVERY_SECONDS = 0.5


class WorkerStatus(BaseModel):
    """What the worker is doing. ``metrics``: the latest of training, per role. ``updated_at`` is UTC.

    ``new_conversations`` of ``needed`` have come since the last round; ``last_round`` is null before the first
    one that finished in this state folder. ``trigger`` started the round that runs or ran last, ``trigger_reason``
    says why, or why none is due.
    """

    model_config = ConfigDict(frozen=True)

    pid: int
    phase: str
    step: int = 0
    of: int = 0
    version: int | None = None
    metrics: Mapping[str, Mapping[str, float]] = {}
    lag: int = 0
    conversations: int = 0
    new_conversations: int = 0
    needed: int = 0
    trigger: Trigger | None = None
    trigger_reason: str | None = None
    last_round: RoundResult | None = None
    last_error: str | None = None
    updated_at: datetime


class RunRound(Protocol):
    """Runs a round, or goes on with the interrupted one, under the lease; reports to ``progress``."""

    def __call__(
        self, progress: Callable[[Progress], None], *, trigger: Trigger, lease: HeldLease
    ) -> RoundResult: ...


class Stopped(Exception):
    """The worker was asked to stop; what it was doing goes on at the next start."""


def read_status(path: Path) -> WorkerStatus | None:
    """The status file's content, or None before the worker has written one."""
    return WorkerStatus.model_validate_json(path.read_bytes()) if path.exists() else None


@dataclass
class Worker:
    """``run`` runs (or goes on with) one round, and is told where to report its progress.

    Of several workers that share a rounds folder one at a time runs a round (``pipelines.round_lease``).
    """

    settings: PipelineSettings
    event_log: EventLog
    run: RunRound
    stop: threading.Event

    def __post_init__(self) -> None:
        last = latest_state(self.settings.rounds_dir)
        self._status = WorkerStatus(
            pid=os.getpid(),
            phase="starting",
            needed=self.settings.min_conversations,
            last_round=last.result if last else None,
            updated_at=datetime.now(UTC),
        )
        self._shown_at = 0.0
        self._lease = round_lease(self.settings)
        self._started_at = datetime.now(UTC)
        self._outcomes: tuple[object, int, int] = (None, 0, 0)
        self._written = 0

    def work(self, *, once: bool = False) -> int:
        """Until ``stop`` is set, or with ``once`` until the log is read and at most one round is run.

        Returns the number of rounds that finished. A round that fails is logged and tried again when the next
        conversations arrive, so that a broken round never stops the dataset; with ``once`` it is raised.

        Raises EventLogUnavailable if the log can not be read at the start. One that goes away later is waited for,
        unless ``once``.
        """
        rounds = 0
        has_read = False
        failed_at: int | None = None
        writer = DatasetWriter(self.event_log, self.settings.datasets_dir, dataset_limits(self.settings))
        try:
            while not self.stop.is_set():
                try:
                    self._consume(writer, flush=once)
                except EventLogUnavailable as error:
                    if once or not has_read:
                        raise
                    self._wait_for_log(error)
                    continue
                if self._status.phase == "waiting":
                    self._show("idle", last_error=None)
                has_read = True
                if self._due().trigger and failed_at != self._status.conversations:
                    try:
                        result = self._run_if_still_due(once)
                    except Stopped:
                        break
                    except Exception as error:
                        log.exception("round failed", extra={"error_type": type(error).__name__})
                        self._show("failed", last_error=f"{type(error).__name__}: {error}")
                        if once:
                            raise
                        failed_at = self._status.conversations
                        continue
                    if result is not None:
                        rounds += 1
                        self._show("idle", last_round=result, last_error=None, metrics={})
                if once:
                    break
                self._idle(writer.group)
        except Stopped:
            pass
        finally:
            writer.close()
            self._show("stopped")
        return rounds

    def _consume(self, writer: DatasetWriter, *, flush: bool) -> None:
        report = writer.consume(lambda done, of: self._progress(Progress("consuming", done, of)), flush=flush)
        self._written += report.conversations
        if report.conversations or self._status.phase == "starting":
            self._status = self._status.model_copy(
                update={"conversations": count_trainable(self.settings.datasets_dir, self.settings.scenario)}
            )

    def _run_if_still_due(self, once: bool) -> RoundResult | None:
        """Run a round under the lease; None where another worker runs or has just run it.

        A database that does not answer is asked again at the next look; with ``once`` LeaseUnavailable is raised.
        """
        try:
            with self._lease.hold() as lease:
                found = self._due()
                if found.trigger is None:
                    return None
                self._show(self._status.phase, trigger=found.trigger)
                return self.run(self._round_progress, trigger=found.trigger, lease=lease)
        except LeaseTaken as taken:
            self._show("idle", trigger_reason=f"not here: {taken}")
        except LeaseUnavailable as error:
            if once:
                raise
            log.error("no round can start: %s", error)
            self._show("idle", last_error=str(error))
        return None

    def _due(self) -> Finding:
        """An interrupted round goes on at once; a new one starts when there is reason to."""
        last = latest_state(self.settings.rounds_dir)
        new = max(0, self._status.conversations - (last.conversations if last else 0))
        if last is not None and not last.finished:
            found = Finding(last.trigger, f"round {last.version} was interrupted and goes on")
        else:
            found = find_trigger(self._evidence(new, last), self.settings)
        self._status = self._status.model_copy(update={"new_conversations": new, "trigger_reason": found.reason})
        return found

    def _evidence(self, new: int, last: RoundState | None) -> Evidence:
        since = last.finished_at if last and last.finished_at else self._started_at
        champion = agent_champion(self.settings.rounds_dir) if last else None
        count = successes = 0
        if champion is not None and champion.gate_success is not None:
            # Read anew only when something came or the champion changed: this is looked at every second.
            key, count, successes = self._outcomes
            if key != (wanted := (champion, since, self._written)):
                directory, scenario = self.settings.datasets_dir, self.settings.scenario
                count, successes = signed_outcomes(directory, scenario, champion.name, since)
                self._outcomes = wanted, count, successes
        return Evidence(new, datetime.now(UTC) - since, champion, count, successes)

    def _idle(self, group: str) -> None:
        try:
            lag = self.event_log.lag(group)
        except EventLogUnavailable as error:
            self._wait_for_log(error)
            return
        self._show("idle", step=0, of=0, lag=lag)
        self.stop.wait(self.settings.poll_seconds)

    def _wait_for_log(self, error: EventLogUnavailable) -> None:
        log.error("the event log is away, trying again: %s", error)
        self._show("waiting", step=0, of=0, last_error=str(error))
        self.stop.wait(self.settings.poll_seconds)

    def _progress(self, at: Progress) -> None:
        if self.stop.is_set():
            raise Stopped
        changed = at.phase != self._status.phase
        if changed or at.step == at.of or time.monotonic() - self._shown_at > _STATUS_EVERY_SECONDS:
            self._show(at.phase, step=at.step, of=at.of)

    def _round_progress(self, at: Progress) -> None:
        if self.stop.is_set():
            raise Stopped
        metrics = at.metrics or self._status.metrics
        self._show(at.phase, step=at.step, of=at.of, version=at.version, metrics=metrics)

    def _show(self, phase: str, **changes: object) -> None:
        self._shown_at = time.monotonic()
        self._status = self._status.model_copy(update={"phase": phase, "updated_at": datetime.now(UTC), **changes})
        write_atomically(self.settings.worker_status_path, self._status.model_dump_json(indent=1))


def dataset_limits(settings: PipelineSettings) -> DatasetLimits:
    """How long the dataset waits for what, by the settings."""
    days = settings.dataset_retention_days
    return DatasetLimits(
        outcome_grace=timedelta(seconds=settings.outcome_grace_seconds),
        gap_deadline=timedelta(seconds=settings.gap_deadline_seconds),
        retention=None if days is None else timedelta(days=days),
        publish_every=timedelta(seconds=settings.dataset_publish_seconds),
    )


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set ``stop``; a second one ends the process at once. Main thread only."""

    def handle(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
