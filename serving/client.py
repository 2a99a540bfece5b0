"""The client of the HTTP API, for our own workers and for users' code. Free of FastAPI and torch.

Every POST carries an Idempotency-Key, so a request whose answer was lost is safely sent again: connection
errors, 429, 503 and "in flight" are retried a few times with growing pauses, at least as long as the answer asks
for; then the last error is raised.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from negotiation.roles import Role
from negotiation.scenario import Context, Outcome
from serving.schemas import (
    AdaptersShown,
    AgentView,
    ConversationOpened,
    ConversationShown,
    MessageAnswered,
    OpenContext,
    OpenConversation,
    OutcomeRecorded,
    ReportOutcome,
    SendMessage,
)

_RETRIED_CODES = frozenset({"conversation_busy", "request_in_flight"})
_Answer = TypeVar("_Answer", bound=BaseModel)


class SparringError(Exception):
    """Any failure of a call."""


class Unreachable(SparringError):
    """No answer came: nothing listens there, or the connection broke or timed out."""


class RequestRefused(SparringError):
    """The service answered with an error. ``status`` is HTTP's; ``code``, ``kind`` and ``param`` are the body's."""

    def __init__(self, status: int, code: str, kind: str, message: str, param: str | None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.kind, self.message, self.param = status, code, kind, message, param


class Unauthorized(RequestRefused):
    """401 or 403: no key, an unknown one, or one for other endpoints."""


class NotFound(RequestRefused):
    """404: no such conversation (of this tenant)."""


class Conflict(RequestRefused):
    """409: closed, busy, or reported before."""


class TooLong(RequestRefused):
    """413: the message or body is over the limit."""


class RateLimited(RequestRefused):
    """429: more than this key may ask for, after all retries, or for longer than one try may take."""


class Unavailable(RequestRefused):
    """503: not ready or overloaded, after all retries."""


_ERRORS: dict[int, type[RequestRefused]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    413: TooLong,
    429: RateLimited,
    503: Unavailable,
}


class SparringClient:
    """Asynchronous; use as ``async with SparringClient(url, api_key) as client``.

    ``transport`` lets tests call an application in process. ``timeout_seconds`` bounds each try.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout_seconds: float = 60.0,
        retries: int = 4,
        transport: httpx.AsyncBaseTransport | None = None,
        limits: httpx.Limits | None = None,
    ) -> None:
        self._retries = retries
        self._longest_wait = timeout_seconds
        self._http = httpx.AsyncClient(
            base_url=base_url,
            timeout=httpx.Timeout(timeout_seconds, connect=5.0),
            headers={"Authorization": f"Bearer {api_key}"},
            transport=transport,
            limits=limits or httpx.Limits(max_connections=256, max_keepalive_connections=64),
            trust_env=False,
        )

    async def __aenter__(self) -> SparringClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def open_conversation(
        self,
        context: Context,
        *,
        simulated: bool = False,
        labels: Mapping[str, str] | None = None,
        training_consent: bool = False,
        customer: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> ConversationOpened:
        """Open a conversation. Only the public part and the agent's view are sent, whatever else ``context`` has.

        ``training_consent`` and ``customer``: see :class:`serving.schemas.OpenConversation`.
        """
        body = OpenConversation(
            scenario=context.scenario,
            context=OpenContext(
                public=context.public,
                views=AgentView(agent=context.views[Role.AGENT]),
                first_speaker=context.first_speaker,
            ),
            source="simulated" if simulated else "live",
            labels=dict(labels or {}),
            training_consent=training_consent,
            customer=dict(customer or {}),
        )
        return await self._post("/v1/conversations", body, ConversationOpened, idempotency_key)

    async def send_message(
        self, conversation_id: str, text: str, *, idempotency_key: str | None = None
    ) -> MessageAnswered:
        """Send the customer's message and wait for the agent's."""
        path = f"/v1/conversations/{conversation_id}/messages"
        return await self._post(path, SendMessage(text=text), MessageAnswered, idempotency_key)

    async def erase_conversation(self, conversation_id: str) -> None:
        """Have the conversation's text erased. Again is fine. Raises NotFound if there never was one."""
        await self._request("DELETE", f"/v1/conversations/{conversation_id}")

    async def get_conversation(self, conversation_id: str) -> ConversationShown:
        return await self._call("GET", f"/v1/conversations/{conversation_id}", ConversationShown)

    async def report_outcome(
        self,
        conversation_id: str,
        outcome: Outcome | ReportOutcome,
        *,
        counterpart_view: dict[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> OutcomeRecorded:
        """Report what came of a closed conversation; with it, what is now known of the customer's side."""
        if isinstance(outcome, Outcome):
            outcome = ReportOutcome(
                agreed=outcome.agreed,
                success=outcome.success,
                rewards=outcome.rewards,
                points=outcome.points,
                pareto_optimal=outcome.pareto_optimal,
                counterpart_view=counterpart_view,
                note=outcome.detail,
            )
        path = f"/v1/conversations/{conversation_id}/outcome"
        return await self._post(path, outcome, OutcomeRecorded, idempotency_key)

    async def adapters(self) -> AdaptersShown:
        """Which adapter versions are in service. Needs an admin key."""
        return await self._call("GET", "/admin/adapters", AdaptersShown)

    async def reconcile(self) -> AdaptersShown:
        """Have the service look at the registry now. Needs an admin key."""
        return await self._call("POST", "/admin/reconcile", AdaptersShown)

    async def ready(self) -> bool:
        """Whether the service says that it can serve; False as well while nothing answers."""
        try:
            return (await self._http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    async def wait_until_ready(self, timeout_seconds: float) -> None:
        """Return once the service is ready. Raises Unreachable after the time given."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while not await self.ready():
            if asyncio.get_running_loop().time() >= deadline:
                raise Unreachable(f"{self._http.base_url} was not ready within {timeout_seconds:g} s")
            await asyncio.sleep(0.1)

    async def _post(self, path: str, body: BaseModel, answer: type[_Answer], key: str | None) -> _Answer:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return await self._call("POST", path, answer, json=body.model_dump(mode="json"), headers=headers)

    async def _call(self, method: str, path: str, answer: type[_Answer], **options: Any) -> _Answer:
        return answer.model_validate_json((await self._request(method, path, **options)).content)

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        least = 0.0
        failure: SparringError = Unreachable("no try was made")
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(max(least, min(5.0, 0.1 * 2**attempt) * random.uniform(0.5, 1.5)))
            try:
                response = await self._http.request(method, path, **options)
            except httpx.TransportError as error:
                failure = Unreachable(f"{method} {self._http.base_url}{path.lstrip('/')}: {type(error).__name__}")
                failure.__cause__ = error
                continue
            if response.is_success:
                return response
            refused = _refusal(response)
            least = _wait_of(response)
            if response.status_code not in (429, 503) and refused.code not in _RETRIED_CODES:
                raise refused
            if least > self._longest_wait:
                raise refused
            failure = refused
        raise failure


def _wait_of(response: httpx.Response) -> float:
    """Seconds that the answer asks to wait before the next try."""
    given = response.headers.get("retry-after", "")
    return float(given) if given.isdigit() else 0.0


def _refusal(response: httpx.Response) -> RequestRefused:
    try:
        body = response.json()["error"]
        code, kind, message, param = str(body["code"]), str(body["type"]), str(body["message"]), body["param"]
    except (ValueError, KeyError, TypeError):
        code, kind, message, param = "unknown", "unknown", response.reason_phrase, None
    return _ERRORS.get(response.status_code, RequestRefused)(response.status_code, code, kind, message, param)
