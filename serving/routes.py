"""The HTTP endpoints: who may call what, and nothing of how it is done."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST

from serving.auth import KeyRecord, KeyStore
from serving.completions import Completions
from serving.conversations import Answer, Conversations
from serving.errors import ApiError, declared_errors, declared_stream, error_body
from serving.metrics import ServiceMetrics
from serving.rate_limits import RateLimits
from serving.schemas import (
    AdaptersShown,
    ApprovalShown,
    ConversationOpened,
    ConversationShown,
    DecideApproval,
    MessageAnswered,
    OpenConversation,
    OutcomeRecorded,
    ReportOutcome,
    SendMessage,
)

log = logging.getLogger("serving")

GONE_CHECK_SECONDS = 0.25
"""Pause between looks whether a client still waits for the first part of its stream."""


class Service(Protocol):
    """What the endpoints act on; kept as ``app.state.service``."""

    keys: KeyStore
    limits: RateLimits
    metrics: ServiceMetrics
    conversations: Conversations
    completions: Completions

    def not_ready(self) -> list[str]: ...

    def adapters(self) -> AdaptersShown: ...

    async def reconcile(self) -> None: ...


_bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer sk-...`")
_Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=255, description="Repeat a request safely: same key, same answer.")
]


async def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(service_of)]


async def key_of(request: Request, service: ServiceOf, bearer: _Bearer) -> AsyncIterator[KeyRecord]:
    """The key that the request came with, counted against its limits until the answer is sent."""
    record = None if bearer is None else service.keys.verify(bearer.credentials)
    if record is None:
        await service.limits.failed_key("unknown" if request.client is None else request.client.host)
    if bearer is None:
        raise ApiError(401, "missing_api_key", "send an API key: Authorization: Bearer sk-...")
    if record is None:
        raise ApiError(401, "invalid_api_key", "the API key is unknown or has expired: check it, or have one made")
    async with service.limits.held(record, request.state.answer_headers):
        yield record


_Key = Annotated[KeyRecord, Depends(key_of)]


async def tenant_of(key: _Key) -> str:
    """The tenant that the key belongs to; there is no other way to name one."""
    if key.scope != "tenant":
        raise ApiError(403, "wrong_key_scope", "this is an admin key: use a tenant's key here")
    return key.tenant


async def require_admin(key: _Key) -> None:
    if key.scope != "admin":
        raise ApiError(403, "wrong_key_scope", "this needs an admin key")


async def approver_of(key: _Key) -> str:
    """The tenant whose offers the key may approve: an admin key's own, and no other."""
    if key.scope != "admin":
        raise ApiError(403, "wrong_key_scope", "approval needs an admin key of the conversation's tenant")
    return key.tenant


Tenant = Annotated[str, Depends(tenant_of)]
Approver = Annotated[str, Depends(approver_of)]

conversations = APIRouter(
    prefix="/v1/conversations",
    tags=["conversations"],
    responses=declared_errors(400, 401, 403, 404, 409, 413, 422, 429, 503),
)
admin = APIRouter(
    prefix="/admin",
    tags=["admin"],
    dependencies=[Depends(require_admin)],
    responses=declared_errors(401, 403, 429, 503),
)
health = APIRouter(tags=["health"])


@conversations.post("", status_code=201, response_model=ConversationOpened)
async def open_conversation(
    body: OpenConversation, tenant: Tenant, service: ServiceOf, idempotency_key: IdempotencyKey = None
) -> JSONResponse:
    """Open a conversation. If the agent speaks first, its message is in the answer."""
    return JSONResponse(await service.conversations.open(tenant, body, idempotency_key), 201)


@conversations.post(
    "/{conversation_id}/messages",
    response_model=MessageAnswered,
    responses=declared_stream("The reply; with `stream`, server-sent events that end with `[DONE]`"),
)
async def send_message(
    conversation_id: str,
    body: SendMessage,
    tenant: Tenant,
    service: ServiceOf,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Send the customer's message; the agent's reply comes back as the customer is to be shown it."""
    if body.stream:
        parts = service.conversations.message_stream(tenant, conversation_id, body, idempotency_key)
        first = await _first(parts, request)
        return StreamingResponse(_events(first, parts), media_type="text/event-stream")
    return JSONResponse(await service.conversations.message(tenant, conversation_id, body, idempotency_key))


@conversations.get("/{conversation_id}")
async def show_conversation(conversation_id: str, tenant: Tenant, service: ServiceOf) -> ConversationShown:
    """The conversation as the customer saw it."""
    return await service.conversations.show(tenant, conversation_id)


@conversations.delete("/{conversation_id}", status_code=204)
async def erase_conversation(conversation_id: str, tenant: Tenant, service: ServiceOf) -> Response:
    """Erase the conversation's text. Again is fine; it can not be undone."""
    await service.conversations.erase(tenant, conversation_id)
    return Response(status_code=204)


@conversations.post("/{conversation_id}/outcome", status_code=201, response_model=OutcomeRecorded)
async def report_outcome(
    conversation_id: str,
    body: ReportOutcome,
    tenant: Tenant,
    service: ServiceOf,
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """Report what came of a closed conversation. Once."""
    return JSONResponse(await service.conversations.outcome(tenant, conversation_id, body, idempotency_key), 201)


@conversations.get("/{conversation_id}/approval")
async def show_approval(conversation_id: str, tenant: Approver, service: ServiceOf) -> ApprovalShown:
    """The offer that waits for approval. Needs an admin key of the conversation's tenant."""
    return await service.conversations.waiting(tenant, conversation_id)


@conversations.post("/{conversation_id}/approval", response_model=MessageAnswered)
async def decide_approval(
    conversation_id: str,
    body: DecideApproval,
    tenant: Approver,
    service: ServiceOf,
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """Approve the offer that waits, or refuse it. Needs an admin key of the conversation's tenant."""
    return JSONResponse(await service.conversations.decide(tenant, conversation_id, body, idempotency_key))


@admin.get("/adapters")
async def show_adapters(service: ServiceOf) -> AdaptersShown:
    """Which adapter versions are in service, and how many open conversations are pinned to each."""
    return service.adapters()


@admin.post("/reconcile")
async def reconcile(service: ServiceOf) -> AdaptersShown:
    """Look at the registry now instead of at the next interval; answers with what is in service then."""
    try:
        await service.reconcile()
    except Exception as error:  # whatever the registry's client raises, the service itself is well
        kind = type(error).__name__
        log.exception("the registry failed", extra={"error_type": kind})
        raise ApiError(503, "registry_failed", f"the registry could not be asked ({kind}): see the log") from error
    return service.adapters()


@health.get("/livez")
async def alive() -> dict[str, str]:
    """The process runs."""
    return {"status": "alive"}


@health.get("/readyz", responses=declared_errors(503))
async def ready(service: ServiceOf) -> JSONResponse:
    """Whether conversations can be served; 503 says why not."""
    reasons = service.not_ready()
    if reasons:
        raise ApiError(503, "not_ready", "; ".join(reasons), retry_after=1)
    return JSONResponse({"status": "ready"})


@health.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: ServiceOf) -> Response:
    """Metrics in the text format of Prometheus."""
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


async def _first(parts: AsyncGenerator[str | Answer], request: Request) -> str | Answer:
    """The first part, so that a failure before it is answered as such. Gives up when the client goes away."""
    waiting = asyncio.ensure_future(anext(parts))
    try:
        while not (await asyncio.wait({waiting}, timeout=GONE_CHECK_SECONDS))[0]:
            if await request.is_disconnected():
                raise ApiError(499, "client_gone", "the client went away before the reply began: nothing was taken")
        return waiting.result()
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait({waiting})


async def _events(first: str | Answer, parts: AsyncGenerator[str | Answer]) -> AsyncIterator[str]:
    try:
        async with aclosing(parts):
            yield _event(first)
            async for part in parts:
                yield _event(part)
    except ApiError as error:
        yield _error_event(error.status, error.code, error.message, error.param)
    except Exception as error:  # the status is sent already: all that is left to say goes into the stream
        log.exception("a stream failed", extra={"error_type": type(error).__name__})
        yield _error_event(500, "internal_error", "the reply failed; retry with the same Idempotency-Key", None)
    else:
        yield "data: [DONE]\n\n"


def _event(part: str | Answer) -> str:
    return f"data: {json.dumps({'delta': part} if isinstance(part, str) else part)}\n\n"


def _error_event(status: int, code: str, message: str, param: str | None) -> str:
    return f"event: error\ndata: {json.dumps(error_body(status, code, message, param))}\n\n"
