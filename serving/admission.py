"""How many replies may be in progress, and which Idempotency-Keys are: one bound for both APIs, since one engine
answers both. Beyond the bound a caller hears 503 at once instead of waiting for an answer that comes too late.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from serving.errors import ApiError


class Admission:
    """Counts on the event loop; knows nothing of what it lets in."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_progress = 0
        self._keys: set[tuple[str, str]] = set()

    @contextmanager
    def entered(self, tenant: str, key: str | None) -> Iterator[None]:
        """One request in progress. Raises ApiError 409 while its key's first one runs, and 503 beyond the bound."""
        slot = None if key is None else (tenant, key)
        if slot is not None and slot in self._keys:
            raise ApiError(409, "request_in_flight", "a request with this Idempotency-Key is running", retry_after=1)
        if self._in_progress >= self._limit:
            raise ApiError(
                503, "overloaded", f"{self._limit} requests are in progress, the limit: retry", retry_after=1
            )
        self._in_progress += 1
        if slot is not None:
            self._keys.add(slot)
        try:
            yield
        finally:
            self._in_progress -= 1
            if slot is not None:
                self._keys.discard(slot)
