"""The HTTP endpoints: who may call what, and nothing of how it is done."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST

from serving.auth import KeyRecord, KeyStore
from serving.conversations import Conversations
from serving.errors import ApiError
from serving.metrics import ServiceMetrics
from serving.schemas import (
    AdaptersShown,
    ConversationOpened,
    ConversationShown,
    MessageAnswered,
    OpenConversation,
    OutcomeRecorded,
    ReportOutcome,
    SendMessage,
)

log = logging.getLogger("serving")


class Service(Protocol):
    """What the endpoints act on; kept as ``app.state.service``."""

    keys: KeyStore
    metrics: ServiceMetrics
    conversations: Conversations

    def not_ready(self) -> list[str]: ...

    def adapters(self) -> AdaptersShown: ...

    async def reconcile(self) -> None: ...


_bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer sk-...`")
_Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=255, description="Repeat a request safely: same key, same answer.")
]


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(service_of)]


def _key(service: Service, bearer: HTTPAuthorizationCredentials | None) -> KeyRecord:
    if bearer is None:
        raise ApiError(401, "missing_api_key", "send an API key: Authorization: Bearer sk-...")
    record = service.keys.verify(bearer.credentials)
    if record is None:
        raise ApiError(401, "invalid_api_key", "the API key is not known: check it, or have one made")
    return record


async def tenant_of(service: ServiceOf, bearer: _Bearer) -> str:
    """The tenant that the key belongs to; there is no other way to name one."""
    record = _key(service, bearer)
    if record.scope != "tenant":
        raise ApiError(403, "wrong_key_scope", "this is an admin key: use a tenant's key here")
    return record.tenant


async def require_admin(service: ServiceOf, bearer: _Bearer) -> None:
    if _key(service, bearer).scope != "admin":
        raise ApiError(403, "wrong_key_scope", "this needs an admin key")


Tenant = Annotated[str, Depends(tenant_of)]

conversations = APIRouter(prefix="/v1/conversations", tags=["conversations"])
admin = APIRouter(prefix="/admin", tags=["admin"], dependencies=[Depends(require_admin)])
health = APIRouter(tags=["health"])


@conversations.post("", status_code=201, response_model=ConversationOpened)
async def open_conversation(
    body: OpenConversation, tenant: Tenant, service: ServiceOf, idempotency_key: IdempotencyKey = None
) -> JSONResponse:
    """Open a conversation. If the agent speaks first, its message is in the answer."""
    return JSONResponse(await service.conversations.open(tenant, body, idempotency_key), 201)


@conversations.post("/{conversation_id}/messages", response_model=MessageAnswered)
async def send_message(
    conversation_id: str,
    body: SendMessage,
    tenant: Tenant,
    service: ServiceOf,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Send the customer's message; the agent's reply comes back as the customer is to be shown it."""
    answer = await service.conversations.message(tenant, conversation_id, body, idempotency_key)
    if body.stream:
        return StreamingResponse(_events(answer), media_type="text/event-stream")
    return JSONResponse(answer)


@conversations.get("/{conversation_id}")
async def show_conversation(conversation_id: str, tenant: Tenant, service: ServiceOf) -> ConversationShown:
    """The conversation as the customer saw it."""
    return await service.conversations.show(tenant, conversation_id)


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


@health.get("/readyz")
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


async def _events(answer: dict[str, Any]) -> AsyncIterator[str]:
    yield f"data: {json.dumps(answer)}\n\n"
    yield "data: [DONE]\n\n"
