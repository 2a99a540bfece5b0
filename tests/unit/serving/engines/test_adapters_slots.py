"""Versions, pins and the step towards the registry's champion, against a real engine where it matters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from negotiation.generation import AdapterNotLoaded
from negotiation.roles import Role
from serving.engines.in_process import InProcessEngine
from serving.slots import (
    MAX_ATTEMPTS,
    AdapterSlots,
    FingerprintChanged,
    NoCurrentAdapter,
    ensure_loaded,
    reconcile,
)

Write = Callable[..., Path]
Make = Callable[..., InProcessEngine]


@dataclass
class Champion:
    name: str
    directory: Path
    fetched: int = 0

    def fetch(self) -> Path:
        self.fetched += 1
        if self.directory == Path("offline"):
            raise ConnectionError("registry is away")
        return self.directory


@dataclass
class Registry:
    """An AdapterSource whose champion a test sets."""

    agent: Champion | None = None

    def champion(self, role: Role) -> Champion | None:
        return self.agent if role is Role.AGENT else None


@dataclass
class Shelf:
    """An AdapterHost without a model."""

    loaded: dict[str, str] = field(default_factory=dict)

    def load_adapter(self, name: str, directory: Path) -> None:
        assert name not in self.loaded
        self.loaded[name] = f"print of {name}"

    def unload_adapter(self, name: str) -> None:
        del self.loaded[name]

    def loaded_adapters(self) -> frozenset[str]:
        return frozenset(self.loaded)

    def fingerprint(self, name: str) -> str:
        return self.loaded[name]


def test_before_the_first_champion(make_engine: Make) -> None:
    slots = AdapterSlots(Role.AGENT)
    report = reconcile(Registry(), make_engine(), slots)
    assert (report.champion, report.current, report.switched) == (None, None, False)
    with pytest.raises(NoCurrentAdapter, match="agent"):
        slots.pin_current()


def test_a_promotion_and_a_rollback_keep_conversations_where_they_began(
    make_engine: Make, write_adapter: Write
) -> None:
    engine, slots = make_engine(), AdapterSlots(Role.AGENT)
    first, second = (Champion(name, write_adapter(name, seed=i)) for i, name in enumerate(["agent@1", "agent@2"]))
    registry = Registry(first)
    assert reconcile(registry, engine, slots).switched
    assert slots.pin_current() == "agent@1"

    registry.agent = second
    report = reconcile(registry, engine, slots)
    assert (report.current, report.loaded, report.unloaded) == ("agent@2", ("agent@2",), ())
    assert slots.pin_current() == "agent@2"
    assert slots.pinned == {"agent@1": 1, "agent@2": 1}
    assert engine.loaded_adapters() == {"agent@1", "agent@2"}

    registry.agent = first
    report = reconcile(registry, engine, slots)
    assert (report.current, report.loaded, report.switched) == ("agent@1", (), True)
    assert first.fetched == 2

    slots.release("agent@2")
    assert reconcile(registry, engine, slots).unloaded == ("agent@2",)
    assert engine.loaded_adapters() == {"agent@1"}
    assert slots.failures == ()


def test_a_bad_version_never_becomes_current_and_is_given_up(make_engine: Make, write_adapter: Write) -> None:
    engine, slots = make_engine(), AdapterSlots(Role.AGENT)
    registry = Registry(Champion("agent@1", write_adapter("agent@1")))
    reconcile(registry, engine, slots)
    broken = write_adapter("agent@2")
    (broken / "weights.bin").write_bytes(b"")
    registry.agent = Champion("agent@2", broken)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        failure = reconcile(registry, engine, slots).failure
        assert failure is not None
        assert (failure.attempts, failure.final) == (attempt, attempt == MAX_ATTEMPTS)
        assert "weights.bin" in failure.reason
        assert slots.current == "agent@1"
    assert reconcile(registry, engine, slots).failure == failure
    assert registry.agent.fetched == MAX_ATTEMPTS
    assert engine.loaded_adapters() == {"agent@1"}

    (broken / "weights.bin").unlink()
    slots.forget("agent@2")
    assert reconcile(registry, engine, slots).current == "agent@2"
    assert slots.failures == ()


def test_a_full_engine_waits_for_conversations_to_end(make_engine: Make, write_adapter: Write) -> None:
    engine, slots = make_engine(max_adapters=1), AdapterSlots(Role.AGENT)
    registry = Registry(Champion("agent@1", write_adapter("agent@1")))
    reconcile(registry, engine, slots)
    registry.agent = Champion("agent@2", write_adapter("agent@2"))
    for _ in range(MAX_ATTEMPTS + 2):
        failure = reconcile(registry, engine, slots).failure
        assert failure is not None
        assert "limit is 1" in failure.reason
        assert not failure.final
    assert slots.current == "agent@1"


def test_an_unreachable_registry_is_no_fault_of_the_version() -> None:
    slots = AdapterSlots(Role.AGENT)
    registry = Registry(Champion("agent@1", Path("offline")))
    for _ in range(MAX_ATTEMPTS + 2):
        failure = reconcile(registry, Shelf(), slots).failure
        assert failure is not None
        assert not failure.final
    registry.agent = Champion("agent@1", Path("here"))
    assert reconcile(registry, Shelf(), slots).current == "agent@1"


def test_a_load_that_disturbs_another_version_is_taken_back() -> None:
    class Leaky(Shelf):
        def load_adapter(self, name: str, directory: Path) -> None:
            super().load_adapter(name, directory)
            self.loaded["agent@1"] = "something else"

    shelf, slots = Leaky(), AdapterSlots(Role.AGENT)
    slots.add("agent@1", "print of agent@1")
    slots.make_current("agent@1")
    with pytest.raises(FingerprintChanged, match="agent@1"):
        ensure_loaded(shelf, slots, "agent@2", Path("x"))
    assert "agent@2" not in shelf.loaded
    assert slots.current == "agent@1"


def test_restoring_pins_after_a_restart() -> None:
    shelf, slots = Shelf(), AdapterSlots(Role.AGENT)
    with pytest.raises(AdapterNotLoaded, match="agent@3"):
        slots.pin("agent@3")
    assert ensure_loaded(shelf, slots, "agent@3", Path("kept"))
    assert not ensure_loaded(shelf, slots, "agent@3", Path("kept"))
    slots.pin("agent@3")
    reconcile(Registry(Champion("agent@4", Path("kept"))), shelf, slots)
    assert slots.pinned == {"agent@3": 1, "agent@4": 0}


def test_other_roles_and_unknown_versions_are_refused() -> None:
    slots = AdapterSlots(Role.AGENT)
    with pytest.raises(ValueError, match="agent"):
        slots.add("counterpart@1", "x")
    with pytest.raises(AdapterNotLoaded):
        slots.make_current("agent@1")
    with pytest.raises(ValueError, match="released twice"):
        slots.release("agent@1")


def test_pins_count_right_from_many_threads() -> None:
    slots = AdapterSlots(Role.AGENT)
    for name in ("agent@1", "agent@2"):
        slots.add(name, "x")
    slots.make_current("agent@1")

    def talk() -> None:
        for turn in range(300):
            name = slots.pin_current()
            slots.make_current(f"agent@{turn % 2 + 1}")
            slots.release(name)

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert slots.pinned == {"agent@1": 0, "agent@2": 0}


class Life(RuleBasedStateMachine):
    """Promotions, rollbacks, conversations and reconciliation in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf, self.slots, self.registry = Shelf(), AdapterSlots(Role.AGENT), Registry()
        self.talking: list[str] = []

    @rule(version=st.integers(1, 5))
    def promote(self, version: int) -> None:
        self.registry.agent = Champion(f"agent@{version}", Path("x"))

    @rule()
    def step(self) -> None:
        report = reconcile(self.registry, self.shelf, self.slots)
        if self.registry.agent is not None:
            assert report.current == self.registry.agent.name == self.slots.current

    @precondition(lambda self: self.slots.current)
    @rule()
    def begin(self) -> None:
        self.talking.append(self.slots.pin_current())

    @precondition(lambda self: self.talking)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.slots.release(self.talking.pop(data.draw(st.integers(0, len(self.talking) - 1))))

    @invariant()
    def everyone_is_served_and_books_agree(self) -> None:
        assert set(self.talking) <= self.shelf.loaded_adapters() == set(self.slots.held)
        assert self.slots.pinned == {name: self.talking.count(name) for name in self.slots.held}
        assert self.slots.current is None or self.slots.current in self.slots.held


Life.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestLife = Life.TestCase
