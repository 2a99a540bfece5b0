"""Any OpenAI-compatible chat completions endpoint as a counterpart: vLLM, llama.cpp, Ollama or a hosted model.

It is told what the role may know and no more: the role's own system prompt, how moves are written, and the dialogue
as that role saw it. The key is passed in by whoever composes the run; nothing here reads the environment. No torch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import openai
from openai.types.chat import ChatCompletionMessageParam

from negotiation.catalogue import scenario_named
from negotiation.deal_or_no_deal import DealOrNoDeal
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState
from negotiation.telesales import VehicleTelesales
from training.counterparts.negotiator import ReplyRequest

_STYLE = "Answer with one short message of at most 30 words, as you would speak. It may end in one move in brackets, "
INSTRUCTIONS = {
    VehicleTelesales.name: _STYLE
    + "which alone binds you: [offer VEHICLE PRICE] with a vehicle of the stock and a whole price, [accept] to take "
    "the other side's offer on the table, or [quit] to end the call. Never write two moves.",
    DealOrNoDeal.name: _STYLE
    + "which alone binds you: [propose BOOKS HATS BALLS] with the numbers you take yourself, [agree] to take the "
    "other side's proposal (its [yours BOOKS HATS BALLS] is what it leaves to you), or [quit] to leave. Once a side "
    "has agreed, answer with [select BOOKS HATS BALLS] only, your own numbers in the split that was agreed, or "
    "[select none]. Never write two moves.",
}
"""How the moves of each scenario are written, for a model that was never trained on them."""
_OPENING = "(The other side is listening. You speak first.)"
_NO_KEY = "no-key"


class EndpointUnreachable(RuntimeError):
    """An endpoint gave no answer that can be used. Names the URL, what happened and the remedy."""


class EndpointNegotiator:
    """Plays ``role`` by asking the endpoint. Answers come at temperature 1, seeded where the server honours seeds."""

    family = "endpoint"

    def __init__(
        self,
        role: Role,
        url: str,
        model: str,
        api_key: str | None = None,
        timeout: float = 30.0,
        *,
        name: str | None = None,
        max_tokens: int = 120,
        concurrency: int = 16,
        retries: int = 2,
    ) -> None:
        """``url`` ends where ``/chat/completions`` begins, for example ``http://localhost:8000/v1``.

        ``concurrency`` bounds the requests in flight at once; ``retries`` are made where the connection broke or
        the server asked for patience. Raises ValueError for a bound that lets nothing through.
        """
        if concurrency < 1 or timeout <= 0 or max_tokens < 1:
            raise ValueError(
                f"concurrency {concurrency}, timeout {timeout} and max_tokens {max_tokens} must each be over 0"
            )
        self.role, self.url, self.model = role, url, model
        self.name = name or f"endpoint:{model}"
        self.max_tokens, self.timeout, self.concurrency = max_tokens, timeout, concurrency
        self._client = openai.OpenAI(
            base_url=url, api_key=api_key or _NO_KEY, admin_api_key="", timeout=timeout, max_retries=retries
        )
        _forget_environment(self._client)

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        """The endpoint's next message. Raises EndpointUnreachable."""
        return self._complete(self._messages(context, state), rng.getrandbits(31))

    def reply_many(self, requests: Sequence[ReplyRequest]) -> list[str | Exception]:
        """All answers, asked for together; a request that failed has its exception in the answer's place."""
        if not requests:
            return []
        # Seeds are drawn here, in order: threads must not decide which request gets which.
        seeds = [rng.getrandbits(31) for _, _, rng in requests]

        def answer(request: ReplyRequest, seed: int) -> str | Exception:
            try:
                return self._complete(self._messages(request[0], request[1]), seed)
            except Exception as error:
                return error

        with ThreadPoolExecutor(min(self.concurrency, len(requests)), "endpoint") as threads:
            return list(threads.map(answer, requests, seeds))

    def check(self) -> None:
        """Have the endpoint say one word, as play would. Raises EndpointUnreachable saying what to do about it."""
        self._complete([{"role": "user", "content": "Say yes."}], 0)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _messages(self, context: Context, state: NegotiationState) -> list[ChatCompletionMessageParam]:
        scenario = scenario_named(context.scenario)
        # A prompt that needed the other side's view would fail here rather than leak it.
        own = context.model_copy(update={"views": {self.role: context.views[self.role]}})
        system = f"{scenario.system_prompt(self.role, own)}\n\n{INSTRUCTIONS[scenario.name]}"
        messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": system}]
        if not state.turns or state.turns[0].role is self.role:
            # Many chat templates refuse a dialogue in which the user does not speak first.
            messages.append({"role": "user", "content": _OPENING})
        for turn in state.turns:
            if turn.role is self.role:
                messages.append({"role": "assistant", "content": turn.text})
            else:
                messages.append({"role": "user", "content": turn.shown})
        return messages

    def _complete(self, messages: list[ChatCompletionMessageParam], seed: int) -> str:
        try:
            completion = self._client.chat.completions.create(
                model=self.model, messages=messages, max_tokens=self.max_tokens, temperature=1.0, seed=seed
            )
        except openai.OpenAIError as error:
            self._fail(error)
        choices = completion.choices or []
        text = (choices[0].message.content or "").strip() if choices else ""
        if not text:
            reason = choices[0].finish_reason if choices else "no choices"
            raise EndpointUnreachable(
                f"{self.model!r} at {self.url} answered without any text ({reason}): a model that thinks aloud first "
                f"needs more than max_tokens={self.max_tokens}, or its thinking switched off"
            )
        return text

    def _fail(self, error: openai.OpenAIError) -> NoReturn:
        where = f"{self.model!r} at {self.url}"
        if isinstance(error, openai.APITimeoutError):
            problem = (
                f"{where} did not answer within {self.timeout} seconds: raise the timeout, or lower the "
                f"concurrency of {self.concurrency}"
            )
        elif isinstance(error, openai.APIConnectionError):
            cause = error.__cause__ or error
            problem = f"no connection to {self.url} ({cause}): start the server there, or correct the URL"
        elif isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            problem = f"{self.url} refused the API key (HTTP {error.status_code}): pass the key of that server"
        elif isinstance(error, openai.NotFoundError):
            problem = f"{self.url} does not serve {self.model!r} (HTTP 404): {self._served()}"
        elif isinstance(error, openai.APIStatusError):
            problem = f"{where} answered HTTP {error.status_code} ({error.message}): see the server's log"
        else:
            problem = f"{where} answered with something else than a chat completion ({error}): correct the URL"
        raise EndpointUnreachable(problem) from error

    def _served(self) -> str:
        """What to ask for instead, as far as the server says."""
        try:
            names = sorted(model.id for model in self._client.models.list())
        except openai.OpenAIError:
            return "it does not list its models either, so check that the URL ends where /chat/completions begins"
        return f"choose one of {', '.join(names)}" if names else "it serves no model at all, so load one"


def _forget_environment(client: openai.OpenAI) -> None:
    """Undo what the client read from OPENAI_* variables, which could send one service's secrets to another."""
    client.organization = client.project = None
    client._custom_headers = {}
