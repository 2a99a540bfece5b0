"""``x-request-id``: the caller's own if it is a sane one, else a fresh one; on every answer and every log record."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.log_context import request_id

HEADER = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class RequestIds:
    """Gives each request its id, and puts ``request.state.answer_headers`` on whatever is answered.

    The handler of crashes runs outside of all middleware, and adds these headers itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(HEADER.encode(), b"").decode("latin-1")
        identity = given if _SANE.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        request_id.set(identity)
        headers: dict[str, str] = {HEADER: identity}
        scope.setdefault("state", {})["answer_headers"] = headers

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self._app(scope, receive, stamped)
