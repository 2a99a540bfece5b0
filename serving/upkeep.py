"""What runs beside the requests: following the registry, closing idle conversations, dropping old data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from serving.log_context import log_scope
from serving.metrics import ServiceMetrics

log = logging.getLogger("serving")


async def every(seconds: float, name: str, work: Callable[[], Awaitable[object]], metrics: ServiceMetrics) -> None:
    """Do ``work`` now and then again after each pause, forever. A failure is logged and counted, and tried again."""
    while True:
        with log_scope():
            try:
                await work()
            except Exception as error:  # one failed round must not end the upkeep of the service
                metrics.background_failures.labels(name).inc()
                log.exception("upkeep failed", extra={"task": name, "error_type": type(error).__name__})
        await asyncio.sleep(seconds)
