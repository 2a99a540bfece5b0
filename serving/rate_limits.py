"""How much one API key may ask for: requests a minute, and requests at once. Guesses at keys are limited by address.

Windows are counted in this process's memory by the ``limits`` library (a sliding window: no burst of twice the limit
at its edge), so several replicas limit apart, and a restart forgets. A known key is never refused because of
guesses made from its address: keys have 256 bits and cannot be guessed, but one address is often many customers'
(a proxy, an office), whom one misconfigured client would otherwise lock out.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from serving.auth import KeyRecord
from serving.errors import ApiError


class RateLimits:
    """The limits of all keys. 0 means: no limit. What a key record says wins over what is given here."""

    def __init__(self, *, requests_per_minute: int, concurrent_requests: int, failed_keys_per_minute: int) -> None:
        self._requests_per_minute = requests_per_minute
        self._concurrent_requests = concurrent_requests
        self._failed_keys_per_minute = failed_keys_per_minute
        self._windows = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._running: Counter[str] = Counter()

    @asynccontextmanager
    async def held(self, key: KeyRecord, headers: MutableMapping[str, str]) -> AsyncIterator[None]:
        """Count one request of the key for as long as it runs. ``headers`` gets what its answer is to say.

        Raises ApiError 429. A request refused because of others at once does not use up the minute's.
        """
        at_once = _first_given(key.concurrent_requests, self._concurrent_requests)
        if at_once and self._running[key.id] >= at_once:
            message = f"{at_once} requests of this key are running, its limit: wait for one to end"
            raise ApiError(429, "too_many_concurrent_requests", message, retry_after=1)
        self._running[key.id] += 1
        try:
            await self._count(key, headers)
            yield
        finally:
            self._running[key.id] -= 1
            if not self._running[key.id]:
                del self._running[key.id]

    async def failed_key(self, address: str) -> None:
        """Count a request without a valid key. Raises ApiError 429 beyond the limit of the address."""
        limit = self._failed_keys_per_minute
        if not limit:
            return
        window = RateLimitItemPerMinute(limit, namespace="failed-keys")
        if not await self._windows.hit(window, address):
            message = f"more than {limit} requests a minute came from your address without a valid key: check the key"
            raise ApiError(429, "too_many_failed_keys", message, retry_after=await self._seconds(window, address))

    async def _count(self, key: KeyRecord, headers: MutableMapping[str, str]) -> None:
        limit = _first_given(key.requests_per_minute, self._requests_per_minute)
        if not limit:
            return
        window = RateLimitItemPerMinute(limit, namespace="requests")
        allowed = await self._windows.hit(window, key.id)
        seconds = await self._seconds(window, key.id)
        remaining = (await self._windows.get_window_stats(window, key.id)).remaining
        headers["x-ratelimit-limit-requests"] = str(limit)
        headers["x-ratelimit-remaining-requests"] = str(remaining)
        headers["x-ratelimit-reset-requests"] = f"{seconds}s"
        if not allowed:
            message = f"this key may make {limit} requests a minute: wait {seconds} s"
            raise ApiError(429, "rate_limit_exceeded", message, retry_after=seconds)

    async def _seconds(self, window: RateLimitItem, identifier: str) -> int:
        """Whole seconds until the next request is let in, at least one."""
        stats = await self._windows.get_window_stats(window, identifier)
        return max(1, math.ceil(stats.reset_time - time.time()))


def _first_given(own: int | None, default: int) -> int:
    return default if own is None else own
