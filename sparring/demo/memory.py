"""Peak memory of a process tree, sampled.

On Linux a page that several processes share (a library's code) is divided among them (proportional set size), so that
the sum is what the machine really holds. Elsewhere resident sizes are added up, which counts shared pages more than
once.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import psutil


class PeakMemory:
    """Samples this process and all below it until :meth:`stop`."""

    def __init__(self, interval_seconds: float = 1.0) -> None:
        self._interval = interval_seconds
        self._done = threading.Event()
        self._peak = 0
        self._thread = threading.Thread(target=self._run, name="peak-memory", daemon=True)
        self._thread.start()

    @property
    def peak_bytes(self) -> int:
        return self._peak

    def stop(self) -> int:
        """The peak in bytes."""
        self._done.set()
        self._thread.join()
        return self._peak

    def _run(self) -> None:
        root = psutil.Process()
        while True:
            total = 0
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    total += _held_bytes(process)
            self._peak = max(self._peak, total)
            if self._done.wait(self._interval):
                return


def _held_bytes(process: psutil.Process) -> int:
    if psutil.LINUX:
        return int(process.memory_full_info().pss)
    return int(process.memory_info().rss)
