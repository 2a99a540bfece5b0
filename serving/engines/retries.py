"""Tries again elsewhere when a server failed, but never adds much load to servers that are failing already.

Generation changes nothing on a server, so it may be repeated as long as nobody has been shown any of it. The budget
follows Finagle's ``RetryBudget``: each request pays in a share, each retry takes out one, a small reserve allows
for quiet times.
"""

from __future__ import annotations

import threading

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from serving.engines.vllm_protocol import ReplicaFailed

RESERVE = 10.0
"""Retries that are allowed out of the blue."""


class Retries:
    """``attempts`` in all for one request; over all requests at most ``share`` of them again, and the reserve."""

    def __init__(self, attempts: int, share: float) -> None:
        self._attempts, self._share = attempts, share
        self._balance = RESERVE
        self._lock = threading.Lock()

    def attempts(self) -> AsyncRetrying:
        """Loop over it with ``async for``; the last failure is raised as it was."""
        with self._lock:
            self._balance = min(RESERVE, self._balance + self._share)
        return AsyncRetrying(
            retry=retry_if_exception_type(ReplicaFailed),
            stop=self._give_up,
            wait=wait_exponential_jitter(multiplier=0.05, max=1.0, jitter=0.05),
            reraise=True,
        )

    def _give_up(self, state: RetryCallState) -> bool:
        if state.attempt_number >= self._attempts:
            return True
        with self._lock:
            if self._balance < 1:
                return True
            self._balance -= 1
            return False
