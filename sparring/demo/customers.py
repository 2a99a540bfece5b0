"""Simulated customers: scripted negotiators of the training families who talk to the service over HTTP.

Each mirrors the negotiation from what it was shown, answers by its own rule, and reports the outcome together with
its private side, which a simulation knows. The mirror must agree with the service on how each call ended.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from negotiation.roles import Role
from negotiation.scenario import CloseReason, NegotiationState, Scenario
from serving.client import SparringClient, SparringError
from serving.schemas import ConversationOpened, MessageAnswered
from training.counterparts import Negotiator


class Disagreement(RuntimeError):
    """The service and the customer's own account of a call differ."""


@dataclass(frozen=True)
class Call:
    """One finished call. ``adapter`` is the version that the call was pinned to."""

    customer: str
    adapter: str
    agreed: bool
    success: bool
    agent_reward: float
    turns: int


@dataclass
class Tally:
    """What a crowd of customers saw. ``requests`` counts each HTTP request once, ``failures`` those unanswered.

    ``seconds`` is how long each request took, in the order in which they ended.
    """

    calls: list[Call] = field(default_factory=list)
    requests: int = 0
    failures: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    @property
    def success_rate(self) -> float | None:
        return sum(call.success for call in self.calls) / len(self.calls) if self.calls else None

    def by_adapter(self) -> dict[str, int]:
        return dict(sorted(Counter(call.adapter for call in self.calls).items()))


class Customers:
    """Draws customers one after the other: a negotiator and a seed each, never the same seed twice in a run."""

    def __init__(self, scenario: Scenario, negotiators: Sequence[Negotiator], first_seed: int) -> None:
        self._scenario = scenario
        self._negotiators = negotiators
        self.next_seed = first_seed

    async def call(self, client: SparringClient, tally: Tally) -> None:
        """One call from opening to reported outcome. A failed request ends the call and is counted."""
        seed = self.next_seed
        self.next_seed += 1
        negotiator = self._negotiators[seed % len(self._negotiators)]
        try:
            tally.calls.append(await self._call(client, tally, negotiator, seed))
        except SparringError as error:
            tally.failures += 1
            tally.errors[f"{type(error).__name__}: {error}"] += 1

    async def _call(self, client: SparringClient, tally: Tally, negotiator: Negotiator, seed: int) -> Call:
        scenario = self._scenario
        context = scenario.generate(seed)
        state = scenario.begin(context)
        rng = random.Random(f"customer:{negotiator.name}:{seed}")
        labels = {"customer": negotiator.name, "family": negotiator.family}
        with _Counted(tally):
            opened = await client.open_conversation(context, simulated=True, labels=labels)
        if opened.message is not None:
            state = scenario.advance(context, state, Role.AGENT, opened.message.text)
        state = _ended(state, opened)
        while state.closed is None:
            text = negotiator.reply(context, state, rng)
            with _Counted(tally):
                answer = await client.send_message(opened.id, text)
            state = scenario.advance(context, state, Role.COUNTERPART, text)
            if answer.reply is not None:
                state = scenario.advance(context, state, Role.AGENT, answer.reply.text)
            state = _ended(state, answer)
        outcome = scenario.outcome(context, state)
        with _Counted(tally):
            await client.report_outcome(opened.id, outcome, counterpart_view=context.views[Role.COUNTERPART])
        return Call(
            customer=negotiator.name,
            adapter=opened.adapter,
            agreed=outcome.agreed,
            success=outcome.success,
            agent_reward=outcome.rewards[Role.AGENT],
            turns=len(state.turns),
        )


async def crowd(
    client: SparringClient, customers: Customers, count: int, at_once: int, progress: Callable[[Tally, int], None]
) -> Tally:
    """``count`` calls, ``at_once`` of them at a time. ``progress`` gets the tally and how many are done."""
    tally = Tally()
    done, left = 0, count

    async def line() -> None:
        nonlocal done, left
        while left > 0:
            left -= 1
            await customers.call(client, tally)
            done += 1
            progress(tally, done)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, count)):
            group.create_task(line())
    return tally


class Stream:
    """Customers who keep calling until told to stop; calls that have begun are finished."""

    def __init__(self, client: SparringClient, customers: Customers, at_once: int, pause_seconds: float) -> None:
        self.tally = Tally()
        self._client, self._customers, self._pause = client, customers, pause_seconds
        self._stopping = asyncio.Event()
        self._lines = [asyncio.create_task(self._line()) for _ in range(at_once)]

    async def _line(self) -> None:
        while not self._stopping.is_set():
            await self._customers.call(self._client, self.tally)
            await asyncio.sleep(self._pause)

    def check(self) -> None:
        """Raise what a line of callers died of, if any."""
        for line in self._lines:
            if line.done() and (error := line.exception()) is not None:
                raise error

    async def stop(self) -> Tally:
        self._stopping.set()
        await asyncio.gather(*self._lines)
        return self.tally


class _Counted:
    """Counts one request and how long it took."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._begun = 0.0

    def __enter__(self) -> None:
        self._tally.requests += 1
        self._begun = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._tally.seconds.append(time.monotonic() - self._begun)


def _ended(state: NegotiationState, answer: ConversationOpened | MessageAnswered) -> NegotiationState:
    """The mirror, closed where the service closed for want of room; otherwise both must say the same."""
    if state.closed is None and answer.reason is CloseReason.TURN_LIMIT:
        return state.model_copy(update={"closed": CloseReason.TURN_LIMIT})
    if state.closed is not answer.reason or state.agreement != answer.agreement:
        raise Disagreement(
            f"the service says {answer.reason} with {answer.agreement}, "
            f"the customer {state.closed} with {state.agreement}"
        )
    return state
