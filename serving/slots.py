"""Which adapter versions a replica holds, who still talks to them, and the step towards the registry's wish.

A conversation is pinned to the version it began with. The current version is the one that new conversations
get. An old version is unloaded once its last conversation ended. Versions are never loaded in place: a new one
comes under its own name, proves itself, and only then becomes current.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from negotiation.adapter import AdapterName
from negotiation.generation import AdapterNotLoaded
from negotiation.roles import Role
from serving.desired import AdapterSource
from serving.engines import AdapterSlotsFull

MAX_ATTEMPTS = 3
"""Loads of one version before it counts as failed for good: a bad file does not get better."""


class AdapterHost(Protocol):
    """The part of an engine that slots need."""

    def load_adapter(self, name: str, directory: Path) -> None: ...

    def unload_adapter(self, name: str) -> None: ...

    def loaded_adapters(self) -> frozenset[str]: ...

    def fingerprint(self, name: str) -> str: ...


class NoCurrentAdapter(LookupError):
    """No version is current yet: the service is not ready."""


class FingerprintChanged(RuntimeError):
    """A loaded adapter answers a fixed prompt differently than when it was loaded."""


@dataclass(frozen=True)
class LoadFailure:
    """Why a version is not being served. ``final``: it is not tried again until :meth:`AdapterSlots.forget`."""

    name: str
    reason: str
    attempts: int
    final: bool


class AdapterSlots:
    """Versions of one role. Thread-safe; knows no engine, so that counting never waits for a model."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self._lock = threading.Lock()
        self._fingerprints: dict[str, str] = {}
        self._pins: Counter[str] = Counter()
        self._current: str | None = None
        self._failures: dict[str, LoadFailure] = {}

    @property
    def current(self) -> str | None:
        """The version for new conversations, None before the first load."""
        return self._current

    @property
    def held(self) -> dict[str, str]:
        """Held versions and the fingerprint each had when loaded."""
        with self._lock:
            return dict(self._fingerprints)

    @property
    def pinned(self) -> dict[str, int]:
        """Open conversations by held version, zeros included."""
        with self._lock:
            return {name: self._pins[name] for name in self._fingerprints}

    @property
    def failures(self) -> tuple[LoadFailure, ...]:
        with self._lock:
            return tuple(self._failures.values())

    def add(self, name: str, fingerprint: str) -> None:
        """Record a loaded version. Raises ValueError for another role's."""
        if AdapterName.parse(name).role is not self.role:
            raise ValueError(f"{name} is not a version of the {self.role}")
        with self._lock:
            self._fingerprints[name] = fingerprint

    def make_current(self, name: str) -> None:
        """New conversations get this version from now on. Raises AdapterNotLoaded."""
        with self._lock:
            self._require(name)
            self._current = name
            self._failures.pop(name, None)

    def pin_current(self) -> str:
        """Begin a conversation: the current version, counted in the same step. Raises NoCurrentAdapter."""
        with self._lock:
            if self._current is None:
                raise NoCurrentAdapter(f"no {self.role} adapter is loaded yet; wait for /readyz")
            self._pins[self._current] += 1
            return self._current

    def pin(self, name: str) -> None:
        """Count a conversation that began earlier (after a restart). Raises AdapterNotLoaded."""
        with self._lock:
            self._require(name)
            self._pins[name] += 1

    def release(self, name: str) -> None:
        """A conversation ended. Raises ValueError if none was counted."""
        with self._lock:
            if self._pins[name] < 1:
                raise ValueError(f"no open conversation is counted for {name}; it was released twice")
            self._pins[name] -= 1

    def drained(self) -> tuple[str, ...]:
        """Held versions that are not current and that no open conversation uses."""
        with self._lock:
            return tuple(name for name in self._fingerprints if name != self._current and not self._pins[name])

    def retire(self, name: str) -> bool:
        """Stop holding a drained version, before the engine unloads it; False if it is in use after all."""
        with self._lock:
            if name == self._current or self._pins[name] or name not in self._fingerprints:
                return False
            del self._fingerprints[name]
            del self._pins[name]
            return True

    def fail(self, name: str, reason: str, *, counts: bool = True) -> LoadFailure:
        """Record a failed load; ``counts`` is False when the version itself is not to blame."""
        with self._lock:
            before = self._failures.get(name)
            attempts = (before.attempts if before else 0) + counts
            failure = LoadFailure(name, reason, attempts, final=attempts >= MAX_ATTEMPTS)
            self._failures[name] = failure
            return failure

    def failure(self, name: str) -> LoadFailure | None:
        with self._lock:
            return self._failures.get(name)

    def forget(self, name: str) -> None:
        """Let a version that failed for good be tried again."""
        with self._lock:
            self._failures.pop(name, None)

    def _require(self, name: str) -> None:
        if name not in self._fingerprints:
            raise AdapterNotLoaded(f"adapter {name!r} is not held; held: {sorted(self._fingerprints)}")


@dataclass(frozen=True)
class ReconcileReport:
    """What one :func:`reconcile` did, for metrics and the admin page."""

    champion: str | None
    current: str | None
    loaded: tuple[str, ...] = ()
    unloaded: tuple[str, ...] = ()
    switched: bool = False
    failure: LoadFailure | None = None


def ensure_loaded(engine: AdapterHost, slots: AdapterSlots, name: str, directory: Path) -> bool:
    """Hold a version without making it current; True if it had to be loaded.

    Used by :func:`reconcile` and, after a restart, for versions that open conversations are pinned to. Raises
    what ``load_adapter`` raises, and FingerprintChanged if loading disturbed a version held already.
    """
    held = slots.held
    if name in held:
        return False
    loads = name not in engine.loaded_adapters()
    if loads:
        engine.load_adapter(name, directory)
    try:
        fingerprint = engine.fingerprint(name)
        for other, expected in held.items():
            if engine.fingerprint(other) != expected:
                raise FingerprintChanged(f"loading {name} changed what {other} answers; restart this replica")
    except Exception:
        if loads:
            engine.unload_adapter(name)
        raise
    slots.add(name, fingerprint)
    return loads


def reconcile(source: AdapterSource, engine: AdapterHost, slots: AdapterSlots) -> ReconcileReport:
    """One step towards the registry's wish: load the champion, switch to it, unload what is drained.

    Blocking; run it in a thread, one at a time per ``slots``. A load that fails leaves the current version
    serving, is recorded in ``slots.failures`` and reported; after :data:`MAX_ATTEMPTS` it is not tried again.
    An unreachable registry raises whatever the source raises, and changes nothing.
    """
    unloaded = _unload_drained(engine, slots)
    champion = source.champion(slots.role)
    if champion is None:
        return ReconcileReport(None, slots.current, unloaded=unloaded)
    name = champion.name
    if name == slots.current:
        return ReconcileReport(name, name, unloaded=unloaded)
    failure = slots.failure(name)
    if failure is not None and failure.final:
        return ReconcileReport(name, slots.current, unloaded=unloaded, failure=failure)
    try:
        loaded = ensure_loaded(engine, slots, name, champion.fetch())
    except (AdapterSlotsFull, OSError) as error:
        failure = slots.fail(name, f"{type(error).__name__}: {error}", counts=False)
        return ReconcileReport(name, slots.current, unloaded=unloaded, failure=failure)
    except (ValueError, RuntimeError, ArithmeticError) as error:
        failure = slots.fail(name, f"{type(error).__name__}: {error}")
        return ReconcileReport(name, slots.current, unloaded=unloaded, failure=failure)
    slots.make_current(name)
    unloaded += _unload_drained(engine, slots)
    return ReconcileReport(name, name, loaded=(name,) if loaded else (), unloaded=unloaded, switched=True)


def _unload_drained(engine: AdapterHost, slots: AdapterSlots) -> tuple[str, ...]:
    names = tuple(name for name in slots.drained() if slots.current is not None and slots.retire(name))
    for name in names:
        engine.unload_adapter(name)
    return names
