"""The demo ends what it started, and nothing else."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import psutil
import pytest

from sparring.demo.memory import PeakMemory
from sparring.demo.processes import ChildFailed, Children, end_left_over, free_port
from sparring.errors import MisuseError

FOREVER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
WITH_CHILD = [
    sys.executable,
    "-c",
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "print('up', flush=True); time.sleep(600)",
]


def is_up(log: Path) -> bool:
    return log.read_text() == "up\n"


def test_children_and_their_children_are_gone_afterwards(tmp_path: Path) -> None:
    with Children(tmp_path, {}) as children:
        child = children.start("one", WITH_CHILD)
        children.wait(child, lambda: is_up(child.log), 60)
        family = [psutil.Process(child.process.pid), *psutil.Process(child.process.pid).children(recursive=True)]
        assert len(family) == 2
        children.check()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert not (tmp_path / "demo-processes.json").exists()


def test_a_child_that_ends_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with Children(tmp_path, {}) as children:
        child = children.start("one", [sys.executable, "-c", "raise SystemExit('no port')"])
        with pytest.raises(ChildFailed, match=r"(?s)one ended with exit code 1.*no port"):
            children.wait(child, lambda: False, 60)


def test_a_child_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    with Children(tmp_path, {}) as children:
        child = children.start("one", FOREVER)
        with pytest.raises(ChildFailed, match="not ready in 0 s"):
            children.wait(child, lambda: False, 0.1)


def test_what_a_killed_demo_left_is_ended_by_the_next(tmp_path: Path) -> None:
    killed = Children(tmp_path, {})
    killed.__enter__()
    child = killed.start("one", FOREVER)
    killed.wait(child, lambda: is_up(child.log), 60)
    assert end_left_over(tmp_path / "demo-processes.json") == 1
    assert not psutil.pid_exists(child.process.pid)


def test_a_process_that_took_over_the_id_is_left_alone(tmp_path: Path) -> None:
    with Children(tmp_path / "other", {}) as others:
        other = others.start("other", FOREVER)
        record = tmp_path / "record.json"
        record.write_text(json.dumps([{"pid": other.process.pid, "started": 1.0}]))
        assert end_left_over(record) == 0
        others.check()


def test_a_taken_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) > port
        with pytest.raises(MisuseError, match="no free port"):
            free_port(port, span=1)


def test_peak_memory_counts_this_process() -> None:
    memory = PeakMemory(0.01)
    assert memory.stop() >= psutil.Process().memory_info().rss // 2
