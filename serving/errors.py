"""One shape for every error: ``{"error": {"message", "type", "param", "code"}}``.

A message names the value, the limit and the remedy. Values of customers' messages never appear in one.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from serving.schemas import ErrorBody

log = logging.getLogger("serving")

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
    504: "unavailable_error",
}


_DESCRIPTIONS = {
    400: "The request cannot be read, or asks for what is not supported",
    401: "No API key, or not a valid one",
    403: "The key is for other endpoints",
    404: "There is none of that name for this key",
    405: "The path has no such method",
    409: "In conflict with the state of the conversation, or with a request that is running: see Retry-After",
    413: "Longer than the limit",
    422: "The request does not fit its schema or the scenario, or its Idempotency-Key was used for another one",
    429: "Beyond the limits of this key or address: see Retry-After",
    503: "Not now: see Retry-After",
}


class ApiError(Exception):
    """An answer that is not a success. ``code`` is stable and machine-readable; ``param`` the offending field."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


def error_body(status: int, code: str, message: str, param: str | None = None) -> dict[str, dict[str, str | None]]:
    """The body of every error answer."""
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def declared_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error answers of an endpoint, for its OpenAPI description."""
    return {status: {"model": ErrorBody, "description": _DESCRIPTIONS[status]} for status in statuses}


def declared_stream(description: str) -> dict[int | str, dict[str, Any]]:
    """That an endpoint's success may also come as server-sent events, for its OpenAPI description."""
    event = {
        "type": "object",
        "required": ["data"],
        "properties": {"event": {"enum": ["message", "error"]}, "data": {"type": "string"}},
    }
    return {200: {"description": description, "content": {"text/event-stream": {"schema": event}}}}


def not_found(conversation_id: str) -> ApiError:
    """Unknown and somebody else's conversation look the same on purpose."""
    return ApiError(404, "conversation_not_found", f"no conversation {conversation_id!r}", param="conversation_id")


def install_error_handlers(app: FastAPI) -> None:
    """Every way a request can fail answers in the one shape, routing errors and crashes included."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        body = error_body(error.status, error.code, error.message, error.param)
        return JSONResponse(body, error.status, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"] if part != "body") or None
        where = f"{param}: " if param else ""
        return JSONResponse(error_body(422, "invalid_request", f"{where}{first['msg']}", param), 422)

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> JSONResponse:
        code = HTTPStatus(error.status_code).name.lower()
        message = f"{error.detail}: {request.method} {request.url.path}"
        return JSONResponse(error_body(error.status_code, code, message), error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def crash(request: Request, error: Exception) -> JSONResponse:
        # The template and not the path: a client writes into that what it likes.
        route = getattr(request.scope.get("route"), "path", "unmatched")
        log.error("request failed", extra={"route": route, "error_type": type(error).__name__})
        headers = getattr(request.state, "answer_headers", {})
        message = "the service failed on this request; it was logged. Retry with the same Idempotency-Key"
        return JSONResponse(error_body(500, "internal_error", message), 500, headers=headers)
