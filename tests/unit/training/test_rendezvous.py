"""Two learners in two threads, one at a time: order is fixed, a failure ends both, nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.rendezvous import LearnerLeft, Rendezvous

pytestmark = pytest.mark.timeout(20)


class Scripted:
    """Two learners that meet a given number of times and note down everything that happens."""

    def __init__(self, meetings: tuple[int, int], joint: Callable[[dict[str, int]], dict[str, int]] | None = None):
        self.log: list[str] = []
        self.answers: dict[str, list[int]] = {"a": [], "b": []}
        self.active = 0
        self.rendezvous: Rendezvous[int, int] = Rendezvous(("a", "b"), joint or self._joint)
        self.meetings = dict(zip("ab", meetings, strict=True))

    def _joint(self, requests: dict[str, int]) -> dict[str, int]:
        self.log.append("joint")
        return {name: value * 10 for name, value in requests.items()}

    def learner(self, name: str) -> Callable[[], None]:
        def learn() -> None:
            for number in range(self.meetings[name]):
                self.log.append(f"{name} asks {number}")
                self.answers[name].append(self.rendezvous.meet(name, number))
                self.active += 1
                assert self.active == 1, "only the holder of the floor may run"
                self.log.append(f"{name} learns {number}")
                self.active -= 1

        return learn

    def run(self) -> None:
        self.rendezvous.run({name: self.learner(name) for name in "ab"})


@given(meetings=st.integers(0, 12))
@settings(max_examples=20, deadline=None)
def test_everything_happens_in_one_order_whatever_the_threads_do(meetings: int) -> None:
    first, second = Scripted((meetings, meetings)), Scripted((meetings, meetings))
    first.run()
    second.run()
    assert first.log == second.log
    assert first.log.count("joint") == meetings
    assert first.answers == {name: [10 * n for n in range(meetings)] for name in "ab"}


def test_a_joint_answer_waits_for_both() -> None:
    pair = Scripted((2, 2))
    pair.run()
    assert pair.log[:3] == ["a asks 0", "b asks 0", "joint"]
    assert all(f"{name} learns {n}" in pair.log for name in "ab" for n in range(2))


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("before_meeting", [True, False])
def test_a_failure_on_either_side_ends_both_with_the_original_error(name: str, before_meeting: bool) -> None:
    pair = Scripted((3, 3))
    learn = pair.learner(name)

    def fails() -> None:
        if not before_meeting:
            pair.rendezvous.meet(name, 0)
        raise ArithmeticError(f"{name} diverged")

    other = "b" if name == "a" else "a"
    with pytest.raises(ArithmeticError, match=f"{name} diverged"):
        pair.rendezvous.run({name: fails, other: pair.learner(other)})
    assert learn is not None
    assert not [thread for thread in threading.enumerate() if thread.name in ("a", "b")]


def test_a_failure_of_the_joint_rollout_ends_both_with_that_error() -> None:
    def joint(_: dict[str, int]) -> dict[str, int]:
        raise ConnectionError("the engine is gone")

    with pytest.raises(ConnectionError, match="the engine is gone"):
        Scripted((2, 2), joint).run()


@pytest.mark.parametrize(("meetings", "left"), [((1, 2), "a"), ((2, 1), "b"), ((0, 1), "a"), ((1, 0), "b")])
def test_one_that_leaves_early_is_named_to_the_one_that_waits(meetings: tuple[int, int], left: str) -> None:
    with pytest.raises(LearnerLeft, match=f"{left} has ended"):
        Scripted(meetings).run()


def test_a_keyboard_interrupt_in_a_learner_is_not_lost() -> None:
    pair = Scripted((2, 2))

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.rendezvous.run({"a": pair.learner("a"), "b": interrupted})
