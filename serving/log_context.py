"""Which request and which conversation a log record belongs to, carried by the task that works on it.

:class:`LogContext` is the filter that puts both on every record, those of libraries included. Only
conversation ids that the service itself made are taken: what a client wrote into a path is not copied into the log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
conversation_id: ContextVar[str | None] = ContextVar("conversation_id", default=None)

_OWN_ID = re.compile(r"conv_[0-9a-f]{32}")


def enter_request() -> None:
    """A request begins in this task. Nothing is reset at its end: a crash is logged after all middleware is left."""
    conversation_id.set(None)


def enter_conversation(identity: str) -> None:
    """What this task logs from here on is about this conversation."""
    conversation_id.set(identity if _OWN_ID.fullmatch(identity) else None)


@contextmanager
def log_scope() -> Iterator[None]:
    """One round of a task that lives long: begin with no conversation, and leave neither id behind.

    The values are put back by hand: a token can not be reset in another context than its own.
    """
    before = request_id.get(), conversation_id.get()
    conversation_id.set(None)
    try:
        yield
    finally:
        request_id.set(before[0])
        conversation_id.set(before[1])


class LogContext(logging.Filter):
    """Adds ``request_id`` and ``conversation_id``; put it on a handler, so that it sees every logger's records."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, variable in (("request_id", request_id), ("conversation_id", conversation_id)):
            value = variable.get()
            if value is not None and not hasattr(record, name):
                setattr(record, name, value)
        return True
