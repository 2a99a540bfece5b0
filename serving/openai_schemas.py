"""Bodies of the OpenAI-compatible endpoints: the part of that API which is honoured here, under its own names.

A parameter that clients send and that is not honoured is declared, so that it can be refused by name instead of
being ignored; those that only restate the default (``n=1``, ``top_p=1``) pass.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_SEED = 2**63 - 1
FinishReason = Literal["stop", "length"]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(_Body):
    type: Literal["text"]
    text: str


class ChatMessage(_Body):
    """``developer`` means ``system``. The null fields are those that a client's own answer objects carry."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[tuple[TextPart, ...], Field(min_length=1, max_length=64)]
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class StreamOptions(_Body):
    include_usage: bool = False


class ChatCompletionRequest(_Body):
    """``max_completion_tokens`` is the newer name of ``max_tokens``. ``user`` is taken and not used."""

    model: str = Field(min_length=1, max_length=64)
    messages: tuple[ChatMessage, ...] = Field(min_length=1, max_length=256)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    user: str | None = Field(None, max_length=256)
    n: int | None = Field(None, ge=1, description="Only 1.")
    top_p: float | None = Field(None, ge=0, le=1, description="Only 1.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Only 0.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Only 0.")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="Only 0.")
    stop: str | tuple[str, ...] | None = Field(None, description="Not supported.")
    tools: tuple[dict[str, object], ...] | None = Field(None, description="Not supported.")
    tool_choice: str | dict[str, object] | None = Field(None, description="Not supported.")
    response_format: dict[str, object] | None = Field(None, description="Not supported, but for `text`.")
    logit_bias: dict[str, float] | None = Field(None, description="Not supported.")

    def unsupported(self) -> list[str]:
        """Names of parameters that ask for something that is not done here."""
        neutral: dict[str, tuple[Any, ...]] = {
            "n": (1,),
            "top_p": (1,),
            "presence_penalty": (0,),
            "frequency_penalty": (0,),
            "top_logprobs": (0,),
            "stop": ((), ""),
            "tools": ((),),
            "tool_choice": ("none", "auto"),
            "response_format": ({"type": "text"},),
            "logit_bias": ({},),
        }
        return [
            name
            for name, passing in neutral.items()
            if (value := getattr(self, name)) is not None and value not in passing
        ]


class Usage(_Body):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenLogprob(_Body):
    """``logprob`` is at temperature 1, whatever was sampled at. ``bytes`` is null for part of a character."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: tuple[()] = ()


class Logprobs(_Body):
    content: tuple[TokenLogprob, ...]
    refusal: None = None


class AnswerMessage(_Body):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(_Body):
    index: Literal[0] = 0
    message: AnswerMessage
    logprobs: Logprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(_Body):
    """``model`` is the adapter version that answered, also where an alias was asked for."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice]
    usage: Usage


class ChunkChoice(_Body):
    """``delta`` has only what is new: first the role, then text, at the end nothing."""

    index: Literal[0] = 0
    delta: dict[Literal["role", "content"], str]
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None


class ChatCompletionChunk(_Body):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: Usage | None = None


class ModelShown(_Body):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["sparring"] = "sparring"


class ModelList(_Body):
    object: Literal["list"] = "list"
    data: tuple[ModelShown, ...]
