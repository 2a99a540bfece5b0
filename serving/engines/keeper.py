"""Keeps every vLLM replica at what it should hold, and keeps those that are not from taking requests.

A replica is taken into service only after it listed every held adapter and answered fixed prompts, with the base and
with each of them, as the others do. One that was restarted is found by its missing adapters, or by the first request
that fails, and gets them back first. Loads go to all replicas or to none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from negotiation.generation import BASE, AdapterNotLoaded, GenerationResult
from serving.adapters import AdapterRejected
from serving.engines import EngineUnavailable
from serving.engines.replica import Replica
from serving.engines.vllm_protocol import ReplicaFailed, RequestRefused

log = logging.getLogger("serving")
PROBES, PROBE_TOKENS = 4, 12
"""Fixed prompts and their length: under the 16 tokens of a cache block, so that the weights themselves answer."""
Answer = list[GenerationResult]


class ReplicaStrayed(RuntimeError):
    """A replica answers a fixed prompt differently than it should: other weights stand behind the name."""


@dataclass(frozen=True)
class Held:
    """An adapter as the servers know it, and how they answered the fixed prompt with it."""

    wire_name: str
    directory: Path
    answer: Answer


def probe_prompts(vocabulary: int) -> list[tuple[int, ...]]:
    """Tokens spread over the vocabulary."""
    places = range(1, PROBES * PROBE_TOKENS + 1)
    ids = [place * 7919 % vocabulary for place in places]
    return [tuple(ids[start : start + PROBE_TOKENS]) for start in range(0, len(ids), PROBE_TOKENS)]


def distance(found: Answer, expected: Answer) -> float:
    """Mean difference of the log-probabilities, in nats a token, as far as both answers had the same to continue.

    The first token that differs still counts (of two that are about as likely a server may take either), those after
    it answer different questions.
    """
    gaps = []
    for one, other in zip(found, expected, strict=True):
        for place, (a, b) in enumerate(zip(one.logprobs, other.logprobs, strict=False)):
            gaps.append(abs(a - b))
            if one.token_ids[place] != other.token_ids[place]:
                break
    return sum(gaps) / len(gaps)


class Keeper:
    """What is held, by name, and the thread that looks after the replicas. Thread-safe."""

    def __init__(self, replicas: Sequence[Replica], vocabulary: int, *, every: float, tolerance: float) -> None:
        self.held: dict[str, Held] = {}
        self.context_length = 0
        self._replicas, self._probes = replicas, probe_prompts(vocabulary)
        self._every, self._tolerance = every, tolerance
        self._base_answer: Answer | None = None
        self._lock = threading.RLock()
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="vllm-keeper", daemon=True)

    def start(self) -> None:
        """Look at every replica. Raises EngineUnavailable if none can be used."""
        for replica in self._replicas:
            self.repair(replica)
        if not any(replica.up for replica in self._replicas):
            raise EngineUnavailable(f"no vLLM server can be used: {self.reasons()}")
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Look at the replicas now instead of at the next turn."""
        self._woken.set()

    def reasons(self) -> str:
        """Why replicas are down."""
        return "; ".join(f"{r.url}: {r.status.reason}" for r in self._replicas if not r.up)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """One change of what is held at a time; no replica is taken into service meanwhile."""
        with self._lock:
            yield

    def model(self, replica: Replica, name: str) -> str:
        """What ``name`` is called on the wire. Raises AdapterNotLoaded."""
        return replica.base if name == BASE else self.require(name).wire_name

    def require(self, name: str) -> Held:
        """What is held under a name. Raises AdapterNotLoaded."""
        held = self.held.get(name)
        if held is None:
            raise AdapterNotLoaded(f"adapter {name!r} is not loaded; loaded: {sorted(self.held)}")
        return held

    def place(self, name: str, wire_name: str, directory: Path, *, expect_change: bool) -> None:
        """Load on every replica that is up, or on none. Raises AdapterRejected, RequestRefused, EngineUnavailable."""
        answers: dict[Replica, Answer] = {}
        try:
            for replica in [replica for replica in self._replicas if replica.up]:
                try:
                    answers[replica] = self._load(replica, wire_name, directory)
                except (ReplicaFailed, TimeoutError) as error:
                    replica.mark_down(str(error))
            if not answers:
                raise EngineUnavailable(f"{name} could not be loaded, no vLLM server is up: {self.reasons()}")
            first = next(iter(answers.values()))
            if expect_change and self._base_answer == first:
                raise AdapterRejected(f"{name} loaded but changes nothing: its modules do not match this model's")
            for replica, answer in answers.items():
                self._compare(f"{name} on {replica.url}", answer, first)
        except (AdapterRejected, RequestRefused, ReplicaStrayed) as error:
            for replica in answers:
                self._unload(replica, wire_name)
            if isinstance(error, ReplicaStrayed):
                raise AdapterRejected(f"the replicas do not agree on {name}: {error}") from error
            raise
        self.held[name] = Held(wire_name, directory, first)

    def drop(self, name: str) -> None:
        """Stop holding an adapter; replicas that are down have lost it anyway, or are rid of it when they return."""
        held = self.require(name)
        del self.held[name]
        for replica in self._replicas:
            if replica.up:
                self._unload(replica, held.wire_name)

    def answer(self, name: str) -> str:
        """The same text as long as every replica that is up answers as when ``name`` was loaded."""
        expected = self._base_answer if name == BASE else self.require(name).answer
        assert expected is not None, "start comes before"
        asked, strayed = 0, []
        for replica in [replica for replica in self._replicas if replica.up]:
            model = self.model(replica, name)
            try:
                found = replica.probe(model, self._probes)
                asked += 1
                self._compare(f"{name} on {replica.url}", found, expected)
            except ReplicaStrayed as error:
                strayed.append(str(error))
            except (ReplicaFailed, TimeoutError) as error:
                replica.mark_down(str(error))
        if not asked:
            raise EngineUnavailable(f"no vLLM server is up: {self.reasons()}")
        return f"{name} {expected} {strayed}"

    def repair(self, replica: Replica) -> None:
        """Bring a replica to what is held and take it into service, or write down why it cannot be."""
        with self._lock:
            deaths, was_up = replica.deaths, replica.up
            try:
                listed = self._check_base(replica)
                missing = [name for name, held in self.held.items() if held.wire_name not in listed]
                if was_up and not missing:
                    return
                if was_up:
                    replica.mark_down(f"it lost {', '.join(missing)}")
                    deaths = replica.deaths
                for name, held in self.held.items():
                    found = self._load(replica, held.wire_name, held.directory, listed)
                    self._compare(f"{name} on {replica.url}", found, held.answer)
            except (ReplicaFailed, RequestRefused, ReplicaStrayed, TimeoutError) as error:
                if replica.up or replica.status.reason != str(error):
                    log.error("replica down", extra={"replica": replica.url, "why": str(error)})
                replica.mark_down(str(error))
                return
            if replica.mark_up(deaths):
                log.info("replica up", extra={"replica": replica.url, "adapters": sorted(self.held)})

    def _check_base(self, replica: Replica) -> set[str]:
        """What the server lists. Raises ReplicaStrayed if it runs another model than the first one did."""
        models = replica.models()
        bases = [model for model in models if not model.get("parent")]
        if not bases:
            raise ReplicaStrayed(f"{replica.url} lists no base model")
        replica.base, length = str(bases[0]["id"]), int(bases[0]["max_model_len"])
        if replica.up:
            return {str(model["id"]) for model in models}
        if not self.context_length:
            self.context_length = length
        if length < self.context_length:
            raise ReplicaStrayed(f"{replica.url} has a context of {length} tokens, the others {self.context_length}")
        found = replica.probe(replica.base, self._probes)
        if self._base_answer is None:
            self._base_answer = found
        self._compare(f"the base model on {replica.url}", found, self._base_answer)
        return {str(model["id"]) for model in models}

    def _load(self, replica: Replica, wire_name: str, directory: Path, listed: set[str] | None = None) -> Answer:
        if listed is None:
            listed = {str(model["id"]) for model in replica.models()}
        # The name carries the digest of the weights: what is listed under it already is the same adapter.
        if wire_name not in listed:
            replica.load(wire_name, directory)
        return replica.probe(wire_name, self._probes)

    def _unload(self, replica: Replica, wire_name: str) -> None:
        try:
            replica.unload(wire_name)
        except (ReplicaFailed, TimeoutError) as error:
            replica.mark_down(str(error))

    def _compare(self, what: str, found: Answer, expected: Answer) -> None:
        """Raises ReplicaStrayed beyond the tolerance, a mean difference in nats a token."""
        gap = distance(found, expected)
        if not gap <= self._tolerance:
            raise ReplicaStrayed(
                f"{what} answers a fixed prompt {gap:.3g} nats a token off, the limit is {self._tolerance:g}: other "
                "weights stand behind the name. Restart that server"
            )

    def _work(self) -> None:
        while not self._stopping:
            self._woken.wait(self._every)
            self._woken.clear()
            for replica in self._replicas:
                if not self._stopping:
                    self.repair(replica)
