"""HTTP connections to vLLM servers: a pool per event loop, and one for what is done from threads.

A pool of httpx belongs to the loop that it was first used in; serving generates in uvicorn's loop, training from
plain threads, for which a loop of this object's own runs in the background.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from serving.config import VllmSettings


class Connections:
    """Pools with the timeouts and limits of the settings. Close it."""

    def __init__(self, settings: VllmSettings, transport: httpx.MockTransport | None = None) -> None:
        key = settings.api_key
        self._options: dict[str, Any] = {
            "headers": {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"},
            "limits": httpx.Limits(
                max_connections=settings.max_connections, max_keepalive_connections=settings.max_connections
            ),
            "timeout": httpx.Timeout(
                settings.read_seconds, connect=settings.connect_seconds, pool=settings.read_seconds
            ),
            # A proxy of the environment is not meant for servers of our own.
            "trust_env": False,
            # Stands in for the network where there is none.
            "transport": transport,
        }
        self.admin = httpx.Client(**self._options)
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._background: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def client(self) -> httpx.AsyncClient:
        """The pool of the running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._pools:
                self._pools[loop] = httpx.AsyncClient(**self._options)
            return self._pools[loop]

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work in the background loop and wait for it. Raises what it raises."""
        with self._lock:
            if self._background is None:
                self._background = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._background.run_forever, name="vllm-connections", daemon=True
                )
                self._thread.start()
        asyncio.run_coroutine_threadsafe(work, self._background).result()

    def close(self) -> None:
        """Close every pool; one of a loop that still runs is closed there, soon. Safe to call twice."""
        self.admin.close()
        with self._lock:
            pools, self._pools = dict(self._pools), WeakKeyDictionary()
            background, self._background = self._background, None
        for loop, pool in pools.items():
            if loop is not background and loop.is_running():
                asyncio.run_coroutine_threadsafe(pool.aclose(), loop)
        if background is not None and self._thread is not None:
            if background in pools:
                asyncio.run_coroutine_threadsafe(pools[background].aclose(), background).result()
            background.call_soon_threadsafe(background.stop)
            self._thread.join()
            background.close()
