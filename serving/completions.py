"""Chat completions: messages in, one reply out, through the same engine and adapters as the conversations.

Nothing is kept (but the answer to an Idempotency-Key), no event is published, no scenario judges the reply: a
``[...]`` move in it is text that the model wrote, and binds nobody. Left out on purpose: tools, stop sequences,
several choices, penalties; they are refused by name.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from negotiation.generation import (
    AdapterNotLoaded,
    Engine,
    GenerationChunk,
    GenerationRequest,
    PromptTooLong,
    Sampling,
)
from negotiation.roles import Role
from negotiation.transcript import ChatFormat
from serving.admission import Admission
from serving.config import ServingSettings
from serving.detokenizer import IncrementalText
from serving.engines import EngineBusy, EngineClosed, EngineUnavailable
from serving.errors import ApiError
from serving.idempotency import fingerprint_of, require_same_request
from serving.metrics import ServiceMetrics
from serving.openai_schemas import (
    AnswerMessage,
    ChatCompletion,
    ChatCompletionRequest,
    ChatMessage,
    Choice,
    FinishReason,
    Logprobs,
    ModelList,
    ModelShown,
    TokenLogprob,
    Usage,
)
from serving.store import ConversationStore

log = logging.getLogger("serving")

ALIAS = "sparring-agent"
"""The model name that means: whatever adapter is in service."""


class ModelSlots(Protocol):
    """The part of the adapter slots that completions need."""

    @property
    def role(self) -> Role: ...

    @property
    def current(self) -> str | None: ...

    def pin_current(self) -> str: ...

    def pin(self, name: str) -> None: ...

    def release(self, name: str) -> None: ...


@dataclass(frozen=True)
class Piece:
    """What one chunk of tokens added to the text; ``tokens`` are empty for the held-back rest at the end."""

    text: str
    tokens: tuple[TokenLogprob, ...]


@dataclass
class Completion:
    """One reply while it is generated. ``first`` was waited for, so that most failures still have a status."""

    model: str
    prompt_tokens: int
    first: GenerationChunk
    rest: AsyncIterator[GenerationChunk]
    deadline: float
    chat: ChatFormat
    with_logprobs: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    finish_reason: FinishReason = "stop"
    completion_tokens: int = 0
    _tokens: list[TokenLogprob] = field(default_factory=list)
    _text: str = ""

    async def pieces(self) -> AsyncIterator[Piece]:
        """The text as it comes. Raises what the engine raises, and TimeoutError after the deadline."""
        text = IncrementalText(self.chat.tokenizer)
        chunk: GenerationChunk | None = self.first
        while chunk is not None:
            self.completion_tokens += len(chunk.token_ids)
            self.finish_reason = chunk.finish_reason or self.finish_reason
            tokens = tuple(self._logprobs(chunk)) if self.with_logprobs else ()
            self._tokens.extend(tokens)
            yield Piece(text.take(chunk.token_ids), tokens)
            async with asyncio.timeout_at(self.deadline):
                chunk = await anext(self.rest, None)
        yield Piece(text.finish(), ())
        self._text = text.whole

    def answer(self) -> ChatCompletion:
        """The whole of it, once :meth:`pieces` has ended."""
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=(
                Choice(
                    message=AnswerMessage(content=self._text),
                    logprobs=Logprobs(content=tuple(self._tokens)) if self.with_logprobs else None,
                    finish_reason=self.finish_reason,
                ),
            ),
            usage=Usage(
                prompt_tokens=self.prompt_tokens,
                completion_tokens=self.completion_tokens,
                total_tokens=self.prompt_tokens + self.completion_tokens,
            ),
        )

    def _logprobs(self, chunk: GenerationChunk) -> Iterator[TokenLogprob]:
        for token, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True):
            if token == self.chat.end_of_turn_id:
                continue
            written = str(self.chat.tokenizer.decode([token], skip_special_tokens=False))
            whole = "\N{REPLACEMENT CHARACTER}" not in written
            yield TokenLogprob(token=written, logprob=logprob, bytes=tuple(written.encode()) if whole else None)


class Completions:
    """Answers completion requests. One instance per process."""

    def __init__(
        self,
        settings: ServingSettings,
        engine: Engine,
        slots: ModelSlots,
        admission: Admission,
        store: ConversationStore,
        metrics: ServiceMetrics,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._slots = slots
        self._admission = admission
        self._store = store
        self._metrics = metrics
        self._chat = ChatFormat(engine.tokenizer)
        self._started = int(time.time())

    def models(self) -> ModelList:
        """The adapter in service under its own name and under the alias; none before the first load."""
        current = self._slots.current
        names = () if current is None else (current, ALIAS)
        return ModelList(data=tuple(ModelShown(id=name, created=self._started) for name in names))

    def model(self, name: str) -> ModelShown:
        """One of :meth:`models`. Raises ApiError 404."""
        for model in self.models().data:
            if model.id == name:
                return model
        raise _no_model(name)

    async def begin(
        self, tenant: str, body: ChatCompletionRequest, key: str | None, held: AsyncExitStack
    ) -> Completion | ChatCompletion:
        """Check, take a place and the adapter, and wait for the first tokens; or the answer that the key was given.

        What is taken is given back when ``held`` is left: the generation, if it still runs, is cancelled then.
        """
        request = self._sampling(body)
        ids = self._prompt(body.messages)
        if len(ids) + request.max_tokens > self._engine.context_length:
            raise ApiError(
                400,
                "context_length_exceeded",
                f"the messages are {len(ids)} tokens and max_tokens is {request.max_tokens}, the limit of both "
                f"together is {self._engine.context_length}: send less",
                param="messages",
            )
        held.enter_context(self._admission.entered(tenant, key))
        if key is not None and (stored := await self._store.answer(tenant, key)) is not None:
            require_same_request(stored.fingerprint, self._fingerprint(body))
            return ChatCompletion.model_validate(stored.body)
        adapter = self._pin(body.model)
        held.callback(self._slots.release, adapter)
        stream = self._engine.stream(GenerationRequest(tuple(ids), adapter, request))
        if isinstance(stream, AsyncGenerator):
            held.push_async_callback(stream.aclose)
        deadline = asyncio.get_running_loop().time() + self._settings.reply_timeout_seconds
        try:
            async with asyncio.timeout_at(deadline):
                first = await anext(stream)
        except Exception as error:
            refusal = self.refusal(error)
            if refusal is None:
                raise
            raise refusal from error
        return Completion(adapter, len(ids), first, stream, deadline, self._chat, bool(body.logprobs))

    async def finish(
        self, tenant: str, body: ChatCompletionRequest, key: str | None, completion: Completion
    ) -> ChatCompletion:
        """Count a completion that has ended, and keep its answer for its key."""
        answer = completion.answer()
        self._metrics.tokens.labels("prompt", completion.model).inc(completion.prompt_tokens)
        self._metrics.tokens.labels("completion", completion.model).inc(completion.completion_tokens)
        self._metrics.completions.labels(completion.model, completion.finish_reason).inc()
        log.info("completion", extra={"completion_id": completion.id, "adapter": completion.model})
        if key is not None:
            await self._store.keep_answer(tenant, key, self._fingerprint(body), answer.model_dump(mode="json"))
        return answer

    def refusal(self, error: Exception) -> ApiError | None:
        """What the caller is told of a failure that is nobody's bug; None for one that may be."""
        if isinstance(error, PromptTooLong):
            return ApiError(400, "context_length_exceeded", str(error), param="messages")
        if isinstance(error, AdapterNotLoaded):
            return ApiError(503, "adapter_not_loaded", str(error), retry_after=1)
        if isinstance(error, EngineBusy | EngineClosed | EngineUnavailable):
            return ApiError(503, "overloaded", str(error), retry_after=1)
        if isinstance(error, TimeoutError):
            limit = self._settings.reply_timeout_seconds
            return ApiError(503, "reply_timeout", f"no reply within {limit:g} s: send it again", retry_after=1)
        return None

    def _sampling(self, body: ChatCompletionRequest) -> Sampling:
        if unsupported := body.unsupported():
            name = unsupported[0]
            raise ApiError(400, "unsupported_parameter", f"{name} is not supported: leave it out", param=name)
        name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        limit = self._settings.max_tokens
        if wanted is not None and wanted > limit:
            message = f"{name} is {wanted}, the limit is {limit}: ask for less, or leave it out"
            raise ApiError(400, "max_tokens_too_large", message, param=name)
        return Sampling(
            max_tokens=wanted or limit,
            temperature=self._settings.temperature if body.temperature is None else body.temperature,
            stop_token_ids=(self._chat.end_of_turn_id,),
            seed=body.seed,
        )

    def _prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """The messages as the model is used to seeing them: an instruction, then both sides in turn."""
        for number, message in enumerate(messages):
            if self._chat.holds_control_tokens(message.text):
                text = "the text holds a control token of the model, such as <|end|>: leave it out"
                raise ApiError(400, "control_tokens", text, param=f"messages.{number}.content")
        system, turns = "", list(messages)
        if turns[0].role in ("system", "developer"):
            system = turns.pop(0).text
        if not turns:
            raise _bad_order("there is only an instruction: add a user message")
        if any(turn.role not in ("user", "assistant") for turn in turns):
            raise _bad_order("an instruction can only come first: move it there")
        if any(one.role == other.role for one, other in pairwise(turns)):
            raise _bad_order("user and assistant must take turns: join messages of the same side")
        if turns[-1].role != "user":
            raise _bad_order("the last message must be the user's")
        return self._chat.dialogue(system, [turn.text for turn in turns], ours_first=turns[0].role == "assistant")

    def _pin(self, model: str) -> str:
        try:
            if model == ALIAS:
                return self._slots.pin_current()
            self._slots.pin(model)
        except AdapterNotLoaded as error:
            raise _no_model(model) from error
        except LookupError as error:
            raise ApiError(503, "no_adapter", "no adapter is in service yet", retry_after=1) from error
        return model

    def _fingerprint(self, body: ChatCompletionRequest) -> str:
        """The same whether or not it is streamed: it is the same answer."""
        return fingerprint_of("completion", body.model_dump(mode="json", exclude={"stream", "stream_options"}))


def _no_model(name: str) -> ApiError:
    return ApiError(
        404, "model_not_found", f"no model {name!r} is in service: see /v1/models, or use {ALIAS!r}", param="model"
    )


def _bad_order(message: str) -> ApiError:
    return ApiError(400, "invalid_messages", f"messages: {message}", param="messages")
