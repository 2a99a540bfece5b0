"""Load for ``bench/serving_cost``: so many requests at once, or so many a second, and how long each took.

aiohttp rather than httpx, because the generator shares the machine with what it measures and must not be the slower
of the two.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np


@dataclass(frozen=True)
class Timing:
    """Seconds of one request; tokens that came. ``first`` is the time to the first token."""

    first: float
    whole: float
    tokens: int
    text: str = ""


@dataclass
class Load:
    """What a run of load gave. ``failed`` counts answers that were not a success, by what they were."""

    timings: list[Timing] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def fail(self, what: str) -> None:
        self.failed[what] = self.failed.get(what, 0) + 1

    def figures(self) -> dict[str, float]:
        """Rates a second, latencies in milliseconds."""
        if not self.timings:
            return {"requests": 0.0, "failed": float(sum(self.failed.values()))}
        first = np.array([one.first for one in self.timings]) * 1000
        whole = np.array([one.whole for one in self.timings]) * 1000
        return {
            "requests": float(len(self.timings)),
            "failed": float(sum(self.failed.values())),
            "requests_per_second": len(self.timings) / self.seconds,
            "tokens_per_second": sum(one.tokens for one in self.timings) / self.seconds,
            "first_ms_p50": float(np.percentile(first, 50)),
            "first_ms_p99": float(np.percentile(first, 99)),
            "whole_ms_p50": float(np.percentile(whole, 50)),
            "whole_ms_p99": float(np.percentile(whole, 99)),
        }


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each figure over repetitions."""
    return {name: float(np.median([run.get(name, float("nan")) for run in runs])) for name in runs[0]}


@dataclass(frozen=True)
class Target:
    """Where requests go and what they say. ``body``, and ``url`` where they differ, make the n-th request's."""

    url: str | Callable[[int], str]
    headers: dict[str, str]
    body: Callable[[int], dict[str, Any]]
    stream: bool = False


async def at_once(target: Target, count: int, width: int) -> Load:
    """``count`` requests, ``width`` of them at any time (closed loop)."""
    load, numbers = Load(), iter(range(count))

    async def line(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            await _one(session, target, number, load)

    return await _timed(load, lambda session: [line(session) for _ in range(width)])


async def at_rate(target: Target, per_second: float, seconds: float) -> Load:
    """Requests begun at even intervals whether or not earlier ones were answered (open loop)."""
    load, count = Load(), int(per_second * seconds)

    async def one(session: aiohttp.ClientSession, number: int, begun: float) -> None:
        await asyncio.sleep(max(0.0, begun + number / per_second - time.perf_counter()))
        await _one(session, target, number, load)

    def tasks(session: aiohttp.ClientSession) -> Sequence[Awaitable[None]]:
        begun = time.perf_counter()
        return [one(session, number, begun) for number in range(count)]

    return await _timed(load, tasks)


async def _timed(load: Load, tasks: Callable[[aiohttp.ClientSession], Sequence[Awaitable[None]]]) -> Load:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        begun = time.perf_counter()
        await asyncio.gather(*tasks(session))
        load.seconds = time.perf_counter() - begun
    return load


async def _one(session: aiohttp.ClientSession, target: Target, number: int, load: Load) -> None:
    begun = time.perf_counter()
    first, tokens, pieces = 0.0, 0, []
    try:
        url = target.url if isinstance(target.url, str) else target.url(number)
        async with session.post(url, json=target.body(number), headers=target.headers) as answer:
            if answer.status >= 400:
                load.fail(f"HTTP {answer.status}")
                return
            if not target.stream:
                payload = await answer.json()
                tokens = int((payload.get("usage") or {}).get("completion_tokens", 0))
            else:
                async for line in answer.content:
                    if not line.startswith(b"data: {"):
                        continue
                    first = first or time.perf_counter() - begun
                    payload = json.loads(line[6:])
                    usage = payload.get("usage")
                    tokens = int(usage["completion_tokens"]) if usage else tokens
                    for choice in payload.get("choices") or ():
                        pieces.append(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
    except (aiohttp.ClientError, TimeoutError) as error:
        load.fail(type(error).__name__)
        return
    whole = time.perf_counter() - begun
    load.timings.append(Timing(first or whole, whole, tokens, "".join(pieces)))
