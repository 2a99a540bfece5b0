"""Whether there is room to keep what a step would write: asked before a message is taken, never found out after.

A full disk, or an outbox that has grown past its bound because the event log has been away for long, is answered 503
at the entrance. What was acknowledged is kept in either case.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from serving.errors import ApiError

RETRY_SECONDS = 10
_MIB = 2**20


class Room:
    """``backlog`` says how many events wait in the outbox; ``free`` how many bytes the folder's disk has left."""

    def __init__(
        self,
        folder: Path,
        *,
        min_free_bytes: int,
        max_outbox_events: int,
        backlog: Callable[[], int],
        free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        self._folder = folder
        self._min_free_bytes = min_free_bytes
        self._max_outbox_events = max_outbox_events
        self._backlog = backlog
        self._free = free

    def require(self) -> None:
        """Raises ApiError 503 ``storage_full`` or ``outbox_full``, naming value, limit and remedy."""
        free = self._free(self._folder)
        if free < self._min_free_bytes:
            message = (
                f"{free // _MIB} MiB are free for conversations, the least is {self._min_free_bytes // _MIB} MiB "
                "(serving.min_free_bytes): make room on the service's disk; the message was not taken"
            )
            raise ApiError(503, "storage_full", message, retry_after=RETRY_SECONDS)
        waiting = self._backlog()
        if waiting > self._max_outbox_events:
            message = (
                f"{waiting} events wait for the event log, the limit is {self._max_outbox_events} "
                "(serving.max_outbox_events): bring the event log back; the message was not taken"
            )
            raise ApiError(503, "outbox_full", message, retry_after=RETRY_SECONDS)
