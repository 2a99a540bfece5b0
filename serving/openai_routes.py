"""``/v1/chat/completions`` and ``/v1/models`` as clients of OpenAI's API expect them.

An error after a stream began is an event that the client library raises on; a client that goes away ends the
generation. ``x-sparring-binding: false`` on every completion: nothing said here binds a business.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive

from serving.completions import Completion
from serving.errors import ApiError, declared_errors, declared_stream, error_body
from serving.openai_schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChunkChoice,
    Logprobs,
    ModelList,
    ModelShown,
)
from serving.routes import IdempotencyKey, Service, ServiceOf, Tenant

log = logging.getLogger("serving")

NOT_BINDING = {"x-sparring-binding": "false"}
_T = TypeVar("_T")

openai = APIRouter(prefix="/v1", tags=["openai-compatible"], responses=declared_errors(401, 403, 422, 429))


async def _held() -> AsyncIterator[AsyncExitStack]:
    """What the request holds until its answer is sent, or its client is gone."""
    async with AsyncExitStack() as stack:
        yield stack


Held = Annotated[AsyncExitStack, Depends(_held)]


@openai.get("/models")
async def list_models(_: Tenant, service: ServiceOf) -> ModelList:
    """The adapter in service, under its own name and as `sparring-agent`."""
    return service.completions.models()


@openai.get("/models/{model}", responses=declared_errors(404))
async def show_model(model: str, _: Tenant, service: ServiceOf) -> ModelShown:
    """One of the models listed."""
    return service.completions.model(model)


@openai.post(
    "/chat/completions",
    response_model=ChatCompletion,
    responses={
        **declared_stream("The reply; with `stream`, server-sent events of `chat.completion.chunk`, then `[DONE]`"),
        **declared_errors(400, 404, 409, 413, 503),
    },
)
async def create_chat_completion(
    request: Request,
    body: ChatCompletionRequest,
    tenant: Tenant,
    service: ServiceOf,
    held: Held,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """One reply to the messages. Stateless, and without authority: a move in its text binds nobody."""
    begun = await _unless_gone(request.receive, service.completions.begin(tenant, body, idempotency_key, held))
    if body.stream:
        events = _events(service, tenant, body, idempotency_key, begun)
        # Left by the generator's own end, or here: the server does not close what it stops reading.
        held.push_async_callback(events.aclose)
        return StreamingResponse(events, media_type="text/event-stream", headers=NOT_BINDING)
    if isinstance(begun, Completion):
        begun = await _unless_gone(request.receive, _whole(service, tenant, body, idempotency_key, begun))
    return JSONResponse(begun.model_dump(mode="json"), headers=NOT_BINDING)


async def _whole(
    service: Service, tenant: str, body: ChatCompletionRequest, key: str | None, completion: Completion
) -> ChatCompletion:
    try:
        async for _ in completion.pieces():
            pass
    except Exception as error:
        refusal = service.completions.refusal(error)
        if refusal is None:
            raise
        raise refusal from error
    return await service.completions.finish(tenant, body, key, completion)


async def _events(
    service: Service,
    tenant: str,
    body: ChatCompletionRequest,
    key: str | None,
    begun: Completion | ChatCompletion,
) -> AsyncGenerator[str, None]:
    """The chunks as server-sent events. Generated ones come as the tokens do, a kept answer in one piece."""

    def event(choice: ChunkChoice) -> str:
        return _event(ChatCompletionChunk(id=begun.id, created=begun.created, model=begun.model, choices=(choice,)))

    try:
        yield event(ChunkChoice(delta={"role": "assistant", "content": ""}))
        if isinstance(begun, Completion):
            async for piece in begun.pieces():
                if piece.text or piece.tokens:
                    logprobs = Logprobs(content=piece.tokens) if begun.with_logprobs else None
                    yield event(ChunkChoice(delta={"content": piece.text}, logprobs=logprobs))
            answer = await service.completions.finish(tenant, body, key, begun)
        else:
            answer, kept = begun, begun.choices[0]
            yield event(ChunkChoice(delta={"content": kept.message.content}, logprobs=kept.logprobs))
        yield event(ChunkChoice(delta={}, finish_reason=answer.choices[0].finish_reason))
        if body.stream_options is not None and body.stream_options.include_usage:
            yield _event(
                ChatCompletionChunk(
                    id=answer.id, created=answer.created, model=answer.model, choices=(), usage=answer.usage
                )
            )
        yield "data: [DONE]\n\n"
    except Exception as error:  # the status is sent already: all that is left to say goes into the stream
        yield f"event: error\ndata: {_failure(service, error)}\n\n"


def _failure(service: Service, error: Exception) -> str:
    refusal = service.completions.refusal(error)
    if refusal is None:
        log.exception("a stream failed", extra={"error_type": type(error).__name__})
        refusal = ApiError(500, "internal_error", "the service failed on this request; it was logged. Retry")
    return json.dumps(error_body(refusal.status, refusal.code, refusal.message, refusal.param))


def _event(chunk: ChatCompletionChunk) -> str:
    left_out = {"usage"} if chunk.usage is None else set()
    return f"data: {chunk.model_dump_json(exclude=left_out)}\n\n"


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of the work, which is cancelled if the client goes away. Its body must have been read before."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "client_closed_request", "the client went away before its answer")
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
