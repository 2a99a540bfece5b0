"""Batches concurrent callers: one worker thread takes everything that waits and answers it in one go.

While one batch runs the next one gathers, so there is no delay to tune. Left out: admitting rows into a running
batch; replies are short, so a batch lasts well under a second on the models this is for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from negotiation.generation import GenerationRequest, GenerationResult
from serving.engines import EngineBusy, EngineClosed
from serving.engines.listener import Listener

Outcome = GenerationResult | Exception
Run = Callable[[Sequence[GenerationRequest], Sequence[Listener | None]], Sequence[Outcome]]
_Waiting = tuple[GenerationRequest, Listener | None, Future[GenerationResult]]


class Batcher:
    """``run`` answers a batch in order, giving an exception in place of a result where a request failed.

    It is handed each request's listener, who wants the tokens as they are sampled, or None.
    """

    def __init__(self, run: Run, *, max_batch: int, max_waiting: int) -> None:
        self._run = run
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="engine-batcher", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that no batch has taken yet."""
        return len(self._waiting)

    def submit(self, request: GenerationRequest, listener: Listener | None = None) -> Future[GenerationResult]:
        """Raises EngineBusy when the queue is full, EngineClosed after :meth:`close`."""
        future: Future[GenerationResult] = Future()
        with self._changed:
            if self._closed:
                raise EngineClosed("the engine is shut down and takes no requests")
            if len(self._waiting) >= self._max_waiting:
                raise EngineBusy(
                    f"{len(self._waiting)} requests wait for the engine, the limit is {self._max_waiting}; "
                    "try again later, or add replicas"
                )
            self._waiting.append((request, listener, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Fail what waits, let the running batch end, stop the thread. Safe to call twice."""
        with self._changed:
            self._closed = True
            abandoned = [future for _, _, future in self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        for future in abandoned:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineClosed("the engine was shut down before it could answer"))
        self._thread.join()

    def _take(self) -> list[_Waiting]:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return [self._waiting.popleft() for _ in range(min(self._max_batch, len(self._waiting)))]

    def _work(self) -> None:
        while taken := self._take():
            # A caller that went away has cancelled its future.
            batch = [waiting for waiting in taken if waiting[-1].set_running_or_notify_cancel()]
            if not batch:
                continue
            outcomes: Sequence[Outcome]
            try:
                outcomes = self._run([request for request, _, _ in batch], [listener for _, listener, _ in batch])
            except Exception as error:
                # The worker must outlive any failure; every caller of this batch learns of it.
                outcomes = [error] * len(batch)
            for (_, _, future), outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
