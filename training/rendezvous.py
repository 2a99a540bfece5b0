"""Where learners meet: each runs its own trainer in its own thread, one thread at a time.

The trainers ask for rollouts on their own; the rollout is joint, so who asks waits until all have asked. The floor
is handed over explicitly, so the order of everything (random numbers included) is the same in every run. A failure
of one ends all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class LearnerLeft(RuntimeError):
    """The other learner ended or failed while this one waited for a joint rollout."""


class Rendezvous(Generic[Request, Answer]):
    """``meet(name, request)`` returns this name's part of ``joint({name: request, ...})``, for one name or more."""

    def __init__(self, names: Sequence[str], joint: Callable[[dict[str, Request]], dict[str, Answer]]) -> None:
        self._names, self._joint = tuple(names), joint
        self._condition = threading.Condition()
        self._floor = names[0]
        self._requests: dict[str, Request] = {}
        self._answers: dict[str, Answer] = {}
        self._left: set[str] = set()
        self._failure: BaseException | None = None

    def run(self, learners: Mapping[str, Callable[[], None]]) -> None:
        """Run all learners to their end; re-raises the first failure."""
        threads = [threading.Thread(target=self._guard, args=(n, learners[n]), name=n) for n in self._names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def meet(self, name: str, request: Request) -> Answer:
        """Called by a learner that holds the floor."""
        with self._condition:
            self._requests[name] = request
            if self._left:
                raise LearnerLeft(f"{', '.join(sorted(self._left))} has ended, {name} cannot roll out alone")
            if len(self._requests) == len(self._names):
                requests = {n: self._requests[n] for n in self._names}
                self._requests = {}
                self._answers = self._joint(requests)
                return self._answers.pop(name)
            self._give_floor(self._next(name))
            self._condition.wait_for(lambda: self._failure is not None or self._floor == name)
            if self._failure is not None:
                raise LearnerLeft(f"another learner failed, {name} stops") from self._failure
            if name not in self._answers:
                raise LearnerLeft(f"{', '.join(sorted(self._left))} has ended, {name} cannot roll out alone")
            return self._answers.pop(name)

    def _guard(self, name: str, learner: Callable[[], None]) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._failure is not None or self._floor == name)
            if self._failure is not None:
                return
        try:
            learner()
        except BaseException as error:
            with self._condition:
                self._failure = self._failure or error
                self._condition.notify_all()
            return
        with self._condition:
            self._left.add(name)
            self._give_floor(self._next(name))

    def _next(self, name: str) -> str:
        return self._names[(self._names.index(name) + 1) % len(self._names)]

    def _give_floor(self, name: str) -> None:
        self._floor = name
        self._condition.notify_all()
