"""Prometheus metrics of one application, in a registry of its own (several apps can live in one process)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from negotiation.events import Closed, ConversationEvent, Message, Offer, Opened, OutcomeReported
from negotiation.generation import BASE
from negotiation.roles import Role
from serving.engines import ReplicaStatus
from serving.record import ConversationRecord

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_SWAP_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

_MOVE_KINDS = frozenset({"accept", "agree", "offer", "propose", "quit", "select"})
"""Moves that a scenario knows. Others are counted as ``other``: a customer can write anything in brackets."""

METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class ServiceMetrics:
    """What an operator watches. Labels have few values: routes, codes, adapters, reasons; never ids."""

    def __init__(
        self,
        pinned: Callable[[], Mapping[str, int]],
        loaded: Callable[[], Collection[str]],
        replicas: Callable[[], Sequence[ReplicaStatus]] = tuple,
    ) -> None:
        """``pinned``: open conversations by held version; ``loaded``: the adapters that may stand in a label."""
        self.registry = CollectorRegistry()
        on: dict[str, Any] = {"registry": self.registry}
        self.opened = Counter("sparring_conversations_opened", "Conversations opened", ["adapter", "source"], **on)
        self.closed = Counter("sparring_conversations_closed", "Conversations closed", ["adapter", "reason"], **on)
        self.messages = Counter("sparring_messages", "Messages taken", ["role", "adapter"], **on)
        self.blocked = Counter("sparring_blocked_offers", "Agent moves stopped by authority", ["adapter"], **on)
        self.guarded = Counter(
            "sparring_guarded_replies", "Replies whose words overstepped", ["adapter", "what"], **on
        )
        self.approvals = Counter("sparring_approvals", "Offers held for approval", ["adapter", "what"], **on)
        self.outcomes = Counter("sparring_outcomes", "Outcomes reported", ["adapter", "success"], **on)
        self.tokens = Counter("sparring_tokens", "Tokens through the engine", ["kind", "adapter"], **on)
        self.requests = Counter("sparring_http_requests", "HTTP answers", ["method", "route", "status"], **on)
        self.latency = Histogram(
            "sparring_http_seconds", "Seconds to answer", ["method", "route"], buckets=_SECONDS, **on
        )
        self.erased = Counter("sparring_conversations_erased", "Conversations erased on request", **on)
        self.completions = Counter(
            "sparring_chat_completions", "Chat completions answered", ["adapter", "finish_reason"], **on
        )
        self.redacted = Counter("sparring_redacted", "Messages that personal data was taken out of", ["kind"], **on)
        self.outbox_events = Gauge("sparring_outbox_events", "Events not yet in the event log", **on)
        self.outbox_seconds = Gauge("sparring_outbox_oldest_seconds", "Age of the oldest of them", **on)
        self.relayed = Counter("sparring_relayed_events", "Events published to the event log", **on)
        self.relay_failures = Counter("sparring_relay_failures", "Failed tries to publish events", **on)
        self.refused_events = Counter("sparring_refused_events", "Events that the event log refused for good", **on)
        self.swaps = Counter("sparring_adapter_swaps", "Adapter versions taken into service", **on)
        self.swap_failures = Counter(
            "sparring_adapter_swap_failures", "Failed tries to take a version into service", **on
        )
        self.background_failures = Counter("sparring_background_failures", "Failed upkeep runs", ["task"], **on)
        self._replicas = replicas
        self._up = Gauge("sparring_engine_replica_up", "Whether a vLLM server takes requests", ["replica"], **on)
        self.swap_seconds = Histogram(
            "sparring_adapter_swap_seconds",
            "Seconds from seeing a new champion to serving it, or to giving up",
            ["result"],
            buckets=_SWAP_SECONDS,
            **on,
        )
        self.offers = Counter(
            "sparring_offers", "Structured moves written", ["role", "kind", "binding", "adapter"], **on
        )
        self.first_token = Histogram(
            "sparring_time_to_first_token_seconds",
            "Seconds from asking the engine to its first token, of streamed replies",
            ["adapter"],
            buckets=_SECONDS,
            **on,
        )
        self.reply_seconds = Histogram(
            "sparring_reply_seconds",
            "Seconds from asking the engine to its last token",
            ["adapter"],
            buckets=_SECONDS,
            **on,
        )
        self.reply_failures = Counter(
            "sparring_reply_failures", "Replies that the engine did not finish", ["adapter", "reason"], **on
        )
        self.queue_depth = Gauge("sparring_queue_depth", "Requests at the engine without a first token yet", **on)
        self.replies_running = Gauge("sparring_replies_in_progress", "Requests at the engine", **on)
        self.checkpoint_seconds = Histogram(
            "sparring_checkpoint_seconds",
            "Seconds for one read or write of a checkpoint",
            ["operation"],
            buckets=_SHORT_SECONDS,
            **on,
        )
        self._loaded = loaded
        self._pinned = pinned
        self._pins = Gauge("sparring_pinned_conversations", "Open conversations by adapter", ["adapter"], **on)

    def count(self, record: ConversationRecord) -> None:
        """Count the events of a conversation's last step."""
        if record.held is not None:
            self.approvals.labels(record.adapter, "asked").inc()
        for event in record.events:
            self._count_event(record, event)

    def _count_event(self, record: ConversationRecord, event: ConversationEvent) -> None:
        adapter, payload = record.adapter, event.payload
        if isinstance(payload, Opened):
            self.opened.labels(adapter, payload.source).inc()
        elif isinstance(payload, Closed):
            self.closed.labels(adapter, payload.reason).inc()
        elif isinstance(payload, OutcomeReported):
            self.outcomes.labels(adapter, str(payload.success).lower()).inc()
        elif isinstance(payload, Message):
            self.messages.labels(payload.role, adapter).inc()
            for kind in payload.redacted:
                self.redacted.labels(kind).inc()
            if payload.role is Role.AGENT:
                self.tokens.labels("prompt", adapter).inc(payload.prompt_tokens)
                self.tokens.labels("completion", adapter).inc(payload.completion_tokens)
                if payload.guarded is not None:
                    self.guarded.labels(adapter, payload.guarded).inc()
                if record.state.turns[-1].blocked:
                    self.blocked.labels(adapter).inc()
        elif isinstance(payload, Offer):
            kind = payload.move.kind if payload.move.kind in _MOVE_KINDS else "other"
            self.offers.labels(payload.role, kind, str(payload.binding).lower(), adapter).inc()
            if payload.approval is not None:
                self.approvals.labels(adapter, payload.approval).inc()

    def adapter_label(self, name: str) -> str:
        """The name if there is such an adapter: a client can ask for any, and labels must stay few."""
        return name if name == BASE or name in self._loaded() else "unknown"

    def observe_checkpoint(self, operation: str, seconds: float) -> None:
        self.checkpoint_seconds.labels(operation).observe(seconds)

    def observe_http(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in METHODS else "other"
        self.requests.labels(method, route, status).inc()
        self.latency.labels(method, route).observe(seconds)

    def exposition(self) -> bytes:
        """The text format of Prometheus."""
        self._pins.clear()
        for adapter, count in self._pinned().items():
            self._pins.labels(adapter).set(count)
        for replica in self._replicas():
            self._up.labels(replica.url).set(replica.state == "up")
        return generate_latest(self.registry)
