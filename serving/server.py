"""Runs the application under uvicorn: bind first, then start; finish running requests, then stop.

Left out on purpose: several worker processes (conversations are leased in process, one process per state
directory) and TLS (that is the proxy's work).
"""

from __future__ import annotations

import errno
import json
import logging
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.server import HANDLED_SIGNALS

from serving.log_context import LogContext

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


_OWN = ("serving", "uvicorn")
_LIBRARIES = ("aiosqlite", "asyncio", "kafka", "langgraph", "opentelemetry", "psycopg", "sqlalchemy")
"""Below WARNING some of these write the values of statements, kafka at DEBUG whole records and its password."""


class AddressUnavailable(OSError):
    """The address cannot be listened on: taken by another process, or not this machine's."""


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message and the record's extra fields.

    Of an exception it writes where and what kind, never its words: they may quote what a customer wrote.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)

    def formatException(self, ei: Any) -> str:
        lines: list[str] = []
        error: BaseException | None = ei[1]
        while error is not None:
            lines.append(_kind(error))
            frames = traceback.extract_tb(error.__traceback__)
            lines += [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n".join(lines)


def log_json(level: int = logging.INFO) -> None:
    """Send the service's, uvicorn's and the libraries' log to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    handler.addFilter(LogContext())
    for name in (*_OWN, *_LIBRARIES):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if name in _OWN else max(level, logging.WARNING))


def _kind(error: BaseException) -> str:
    number = errno.errorcode.get(error.errno or 0, "") if isinstance(error, OSError) else ""
    state = getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None) or number
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    return f"{name} ({state})" if state else name


def bind(host: str, port: int) -> socket.socket:
    """Take the address before anything slow is loaded. Raises AddressUnavailable, saying what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol left at 0 asyncio does not see that it is TCP and leaves Nagle's algorithm on: +40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise AddressUnavailable(
            f"can not listen on {host}:{port}: {error.strerror}; stop what uses it or choose another port (0 = any)"
        ) from error
    return listener


def serve(
    app: FastAPI,
    host: str,
    port: int,
    *,
    listener: socket.socket | None = None,
    shutdown_seconds: int = 20,
    trusted_proxies: Sequence[str] = (),
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish running requests. ``on_ready`` is called with the base URL.

    The address of a client is that of its connection; only ``trusted_proxies`` may name another one for it.
    Give ``listener`` (from :func:`bind`) to have the port before a slow start. Raises AddressUnavailable, and
    RuntimeError if the application failed to start.
    """
    own = bind(host, port) if listener is None else listener
    bound_host, bound_port = own.getsockname()[:2]
    shown = f"[{bound_host}]" if ":" in bound_host else bound_host
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        # uvicorn would believe X-Forwarded-For from loopback, and what the environment names.
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        timeout_graceful_shutdown=shutdown_seconds,
        lifespan="on",
    )
    server = _Server(config, f"http://{shown}:{bound_port}", on_ready)
    try:
        server.run(sockets=[own])
    finally:
        own.close()
    if not server.started:
        raise RuntimeError("the service did not start; the log above says why")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, url: str, on_ready: Callable[[str], None] | None) -> None:
        super().__init__(config)
        self._url, self._on_ready = url, on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the signal is not raised again afterwards: the caller has things to close."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready(self._url)
