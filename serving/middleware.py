"""ASGI middleware: measures answers, and refuses requests over the limits before anything reads them whole."""

from __future__ import annotations

import time

from fastapi import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import error_body
from serving.metrics import ServiceMetrics


class Measure:
    """Counts answers and their time by route template, never by the path itself."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            self._metrics.observe_http(scope["method"], route, status, time.perf_counter() - start)


class HeaderLimit:
    """431 naming number and limit. How long headers may be in all is the server's own limit."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len(scope["headers"]) > self._limit:
            message = f"the request has {len(scope['headers'])} headers, the limit is {self._limit}: send fewer"
            await JSONResponse(error_body(431, "too_many_headers", message), 431)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class BodyLimit:
    """413 naming size and limit, by the declared length or by counting what arrives."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._limit:
            body = error_body(413, "content_too_large", self._message(int(declared)))
            await JSONResponse(body, 413, headers={"Connection": "close"})(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                # FastAPI turns any other exception raised while it reads the body into a 400.
                raise HTTPException(413, self._message(received))
            return message

        await self._app(scope, counted, send)

    def _message(self, size: int) -> str:
        return f"the request body is {size} bytes or more, the limit is {self._limit}: send less"
