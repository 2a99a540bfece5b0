"""Hands tokens from the thread that samples them to the coroutine that wants them as they come."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Literal

from negotiation.generation import GenerationChunk, GenerationResult


class Listener:
    """One row's tokens. Made on the event loop that listens; :meth:`token` is called on the sampling thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[GenerationChunk | None] = asyncio.Queue()
        self._broken = False
        self.gone = False
        """Nobody listens any more: the row may stop. Set on either thread, read on the sampling one."""

    def token(self, token: int, logprob: float, finish_reason: Literal["stop", "length"] | None) -> None:
        """A token was sampled. From one without a finite log-probability on none is given: the batch will fail."""
        self._broken = self._broken or not math.isfinite(logprob)
        if not self.gone and not self._broken:
            self._hand_over(GenerationChunk((token,), (logprob,), finish_reason))

    def ended(self, _: Future[GenerationResult]) -> None:
        """The request was answered or has failed: nothing more will come."""
        self._hand_over(None)

    async def chunks(self) -> AsyncIterator[GenerationChunk]:
        """Until the last one, or until :meth:`ended`. What came while the consumer was busy is one chunk."""
        while (chunk := await self._chunks.get()) is not None:
            token_ids, logprobs = list(chunk.token_ids), list(chunk.logprobs)
            while chunk.finish_reason is None and not self._chunks.empty():
                following = self._chunks.get_nowait()
                if following is None:
                    yield GenerationChunk(tuple(token_ids), tuple(logprobs))
                    return
                chunk = following
                token_ids += chunk.token_ids
                logprobs += chunk.logprobs
            yield GenerationChunk(tuple(token_ids), tuple(logprobs), chunk.finish_reason)
            if chunk.finish_reason is not None:
                return

    def _hand_over(self, chunk: GenerationChunk | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
        except RuntimeError:
            # The loop is closed. The sampling thread has others to serve.
            self.gone = True
