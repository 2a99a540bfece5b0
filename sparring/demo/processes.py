"""Starts the demo's processes, waits until they answer, and stops them by handle, never by name.

Each child leads a session of its own, so that Ctrl-C reaches the driver alone and the driver decides the order. Their
ids are written down: a demo that was killed leaves children behind, and the next run ends exactly those.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from sparring.errors import MisuseError

_GRACE_SECONDS = 25.0
_TAIL_LINES = 12


class ChildFailed(RuntimeError):
    """A process of the demo ended or never answered. The message has the end of its log."""


@dataclass
class Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines)

    def check(self) -> None:
        """Raise ChildFailed if it has ended."""
        code = self.process.poll()
        if code is not None:
            raise ChildFailed(f"{self.name} ended with exit code {code}. The end of {self.log}:\n{self.tail()}")


class Children:
    """The processes of one demo, as a context manager: on leaving, all are stopped, last started first."""

    def __init__(self, state_dir: Path, environment: Mapping[str, str]) -> None:
        self._logs = state_dir / "logs"
        self._record = state_dir / "demo-processes.json"
        self._environment = {**os.environ, **environment}
        self._children: list[Child] = []

    def __enter__(self) -> Children:
        self._logs.mkdir(parents=True, exist_ok=True)
        end_left_over(self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            _stop(child.process)
        self._record.unlink(missing_ok=True)

    def start(self, name: str, command: Sequence[str]) -> Child:
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        self._write_record()
        return child

    def check(self) -> None:
        """Raise ChildFailed if any has ended."""
        for child in self._children:
            child.check()

    def wait(self, child: Child, ready: Callable[[], bool], seconds: float) -> None:
        """Until ``ready`` says so. Raises ChildFailed if the child ends first or the time is up."""
        limit = time.monotonic() + seconds
        while not ready():
            child.check()
            if time.monotonic() > limit:
                raise ChildFailed(
                    f"{child.name} was not ready in {seconds:.0f} s. The end of {child.log}:\n{child.tail()}"
                )
            time.sleep(0.2)

    def _write_record(self) -> None:
        entries = []
        for child in self._children:
            with suppress(psutil.NoSuchProcess):
                entries.append({"pid": child.process.pid, "started": psutil.Process(child.process.pid).create_time()})
        self._record.write_text(json.dumps(entries), encoding="utf-8")


def end_left_over(record: Path) -> int:
    """End what a killed demo left running: same id and same start time, nothing else. Returns how many."""
    if not record.is_file():
        return 0
    ended = 0
    for entry in json.loads(record.read_text(encoding="utf-8")):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(entry["pid"]))
            if abs(process.create_time() - float(entry["started"])) < 1:
                tree = [*process.children(recursive=True), process]
                for member in tree:
                    with suppress(psutil.NoSuchProcess):
                        member.terminate()
                _, alive = psutil.wait_procs(tree, timeout=_GRACE_SECONDS)
                for member in alive:
                    with suppress(psutil.NoSuchProcess):
                        member.kill()
                ended += 1
    record.unlink(missing_ok=True)
    return ended


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    # What remains of its session: workers that it had started and did not take along.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port(preferred: int, host: str = "127.0.0.1", span: int = 50) -> int:
    """``preferred`` or the next port that nobody listens on. Raises MisuseError if there is none in the span."""
    for port in range(preferred, min(preferred + span, 65536)):
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((host, port))
                return port
    last = preferred + span - 1
    raise MisuseError(f"no free port on {host} from {preferred} to {last}: stop some of what listens there")
