"""``kill -9`` of the service, of Postgres and of vLLM in turn, in mid-conversation: seconds until talk goes on.

Each time a conversation is open with one turn acknowledged. The process is killed and started again at once; the next
message is sent again and again under one Idempotency-Key until it is answered. Beside it stands how long the process
took to start for the first time, with what is done only once. An acknowledged turn that is missing afterwards, or one
that is there twice, ends the run.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import typer
from on_vllm import TOKENS, require_vllm, vllm_answers, wait_for

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from serving.auth import KeyStore
from sparring.demo.processes import free_port
from sparring.models import resolve_base_model
from sparring.vllm_cpu import command, environment

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests' own Postgres server is the one to kill here
from tests.service.postgres_server import NoPostgresPrograms, own_postgres


class Killable:
    """A process with a session of its own, so that its workers are killed with it."""

    def __init__(self, line: list[str], variables: dict[str, str], log: Path) -> None:
        self._line, self._variables, self._log = line, variables, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                self._line, env=self._variables, stdout=sink, stderr=sink, start_new_session=True
            )

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Shop:
    """The service on Postgres and vLLM, and a customer who insists."""

    def __init__(self, url: str, key: str) -> None:
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120)
        self._number = 0

    def open(self) -> str:
        """A conversation with one turn of each side, acknowledged."""
        self._number += 1
        context = scenario_named("telesales").generate(self._number)
        views = {"agent": context.views[Role.AGENT]}
        body = {
            "scenario": "telesales",
            "context": {"public": context.public, "views": views, "first_speaker": "counterpart"},
        }
        identity = str(self._insist("/v1/conversations", body, f"open-{self._number}")["id"])
        self._insist(f"/v1/conversations/{identity}/messages", {"text": "hello"}, f"first-{self._number}")
        return identity

    def goes_on(self, identity: str) -> None:
        """Until the next message is answered; then all four turns must be there, once each."""
        self._insist(f"/v1/conversations/{identity}/messages", {"text": "and now?"}, f"second-{self._number}")
        turns = self._client.get(f"/v1/conversations/{identity}").json()["turns"]
        customer = [turn["text"] for turn in turns if turn["role"] == "counterpart"]
        if customer != ["hello", "and now?"] or len(turns) != 4:
            raise RuntimeError(f"turns were lost or doubled: {len(turns)} turns, of the customer {customer}")

    def _insist(self, path: str, body: dict[str, Any], key: str) -> Any:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                answer = self._client.post(path, json=body, headers={"Idempotency-Key": key})
            except httpx.TransportError:
                time.sleep(0.02)
                continue
            if answer.is_success:
                return answer.json()
            if answer.status_code not in (409, 503):
                raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
            time.sleep(0.02)
        raise TimeoutError(f"{path} was not answered within 300 s")


def recovery(folder: Path, python: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds by victim: its first start, and from its kill to the next answer (median and longest)."""
    found: dict[str, dict[str, float]] = {}
    with _everything(folder, python, found) as (shop, victims):
        for name, (kill, start) in victims.items():
            seconds = []
            for _ in range(repeats):
                identity = shop.open()
                begun = time.perf_counter()
                kill()
                start()
                shop.goes_on(identity)
                seconds.append(time.perf_counter() - begun)
            found[name] |= {"back_median": statistics.median(seconds), "back_longest": max(seconds)}
    return found


Control = tuple[Callable[[], None], Callable[[], None]]


@contextmanager
def _everything(
    folder: Path, python: Path, found: dict[str, dict[str, float]]
) -> Iterator[tuple[Shop, dict[str, Control]]]:
    require_vllm(python)
    vllm_port, port = free_port(8860), free_port(8840)
    address, config = f"http://127.0.0.1:{vllm_port}", folder / "recovery.toml"
    serve = [sys.executable, "-m", "sparring.cli", "serve", "--port", str(port), "--config", str(config)]
    with ExitStack() as stack:

        def timed(name: str, start: Callable[[], None], ready: Callable[[], bool]) -> None:
            begun = time.perf_counter()
            start()
            wait_for(ready)
            found[name] = {"first_start": time.perf_counter() - begun}

        try:
            postgres = stack.enter_context(own_postgres())
        except NoPostgresPrograms as error:
            raise typer.BadParameter(str(error)) from error
        postgres.kill()
        timed("postgres", postgres.start, lambda: True)
        config.write_text(
            f'state_dir = "{folder / "recovery"}"\n[serving]\nmax_tokens = {TOKENS}\nreconcile_seconds = 0.5\n'
            f'checkpoints_url = "{postgres.url}"\n[serving.vllm]\nurls = ["{address}"]\nprobe_seconds = 0.5\n'
        )
        line = command(python, resolve_base_model("bundled").path, vllm_port)
        vllm = Killable(line, environment(1), folder / "vllm.log")
        stack.callback(vllm.kill)
        timed("vllm", vllm.start, lambda: vllm_answers(address))
        service = Killable(serve, {**os.environ, "OMP_NUM_THREADS": "1"}, folder / "serve.log")
        stack.callback(service.kill)
        url = f"http://127.0.0.1:{port}"
        timed("serving", service.start, lambda: httpx.get(f"{url}/readyz").is_success)
        key = KeyStore(folder / "recovery" / "keys.json").create_key("bench")
        victims: dict[str, Control] = {
            "serving": (service.kill, service.start),
            "postgres": (postgres.kill, postgres.start),
            "vllm": (vllm.kill, vllm.start),
        }
        yield Shop(url, key), victims
