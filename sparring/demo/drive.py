"""The demo's course: start, customers, round, gate, swap under traffic, one table, stop."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import Progress

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from pipelines.round_state import RoundResult
from pipelines.worker import WorkerStatus, read_status
from serving.auth import KeyStore
from serving.client import SparringClient
from sparring.demo.customers import Customers, Stream, Tally, crowd
from sparring.demo.memory import PeakMemory
from sparring.demo.processes import Child, ChildFailed, Children, free_port
from sparring.demo.table import Ending, print_ending
from sparring.errors import MisuseError
from sparring.models import BUNDLED
from sparring.progress import RoundBars, columns
from sparring.settings import Settings
from training.counterparts import negotiators

SCENARIO = "telesales"
HOST = "127.0.0.1"
MLFLOW_PORT = 5600
_FIRST_SEED = 900_000_000_000
_SEEDS_A_RUN = 100_000
_READY_SECONDS = 180.0
_SWAP_SECONDS = 90.0
_IDLE_SECONDS = 60.0
_CALLS_AFTER_SWAP = 12
_POLL_SECONDS = 0.3


@dataclass(frozen=True)
class DemoPlan:
    """``customers`` calls before the round, ``at_once`` at a time; ``stream`` callers while versions change."""

    once: bool
    customers: int
    at_once: int
    stream: int
    config: Path | None


def run_demo(settings: Settings, plan: DemoPlan, console: Console) -> Ending:
    """Run it. Raises ChildFailed if a part fails, MisuseError if a demo runs in this state folder already."""
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(settings.state_dir / "demo.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        where = settings.state_dir
        raise MisuseError(f"another demo runs in {where}: stop it, or choose another state_dir") from error
    try:
        with Children(settings.state_dir, _environment(settings, plan)) as children:
            return asyncio.run(_Demo(settings, plan, console, children).run())
    finally:
        lock.release()


def _environment(settings: Settings, plan: DemoPlan) -> dict[str, str]:
    variables = {
        "SPARRING_STATE_DIR": str(settings.state_dir.absolute()),
        "SPARRING_PIPELINES__SCENARIO": SCENARIO,
        # The round begins when this demo's customers have called.
        "SPARRING_PIPELINES__MIN_CONVERSATIONS": str(plan.customers),
        # Nor can it learn from calls of a minute ago otherwise; these callers are our own.
        "SPARRING_PIPELINES__CURATION__QUARANTINE_HOURS": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        # A viewer is all that is needed of the server here; its job runners would only take memory.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "TOKENIZERS_PARALLELISM": "false",
        # One memory arena per thread (glibc's default) would cost the worker a gigabyte.
        "MALLOC_ARENA_MAX": "2",
    }
    if settings.base_model == BUNDLED or Path(settings.base_model).exists():
        variables["HF_HUB_OFFLINE"] = "1"
    if plan.config is not None:
        variables["SPARRING_CONFIG"] = str(plan.config.absolute())
    return variables


class _Demo:
    def __init__(self, settings: Settings, plan: DemoPlan, console: Console, children: Children) -> None:
        self.settings, self.plan, self.console, self.children = settings, plan, console, children
        self.scenario = scenario_named(SCENARIO)
        customers = negotiators(SCENARIO, Role.COUNTERPART, "train")
        self.customers = Customers(self.scenario, customers, _take_seeds(settings.state_dir / "demo.json"))
        self.begun = time.monotonic()

    async def run(self) -> Ending:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        keys = KeyStore(self.settings.serving.keys_path)
        tenant, admin = keys.create_key("demo"), keys.create_key("demo", "admin")
        made = [record.id for record in keys.records()[-2:]]
        memory = PeakMemory()
        try:
            return await self._run(tenant, admin, memory)
        finally:
            memory.stop()
            for key_id in made:
                keys.revoke(key_id)

    async def _run(self, tenant: str, admin: str, memory: PeakMemory) -> Ending:
        last = read_status(self.settings.pipelines.worker_status_path)
        round_before = last.last_round.version if last and last.last_round else 0
        url = await self._start_service(tenant)
        worker = self.children.start("worker", [sys.executable, "-m", "sparring.cli", "worker"])
        mlflow = self._start_mlflow()
        async with (
            SparringClient(url, tenant) as client,
            # No retries here: a request that had to be repeated during the swap would be a failure.
            SparringClient(url, tenant, retries=0) as strict,
            SparringClient(url, admin) as operator,
        ):
            before = await self._call_customers(client)
            result, stream = await self._follow_round(worker, round_before, strict)
            serving, swap_seconds = await self._await_swap(operator, stream, result)
            during = await stream.stop()
        await self._await_mlflow(mlflow)
        urls = {"API docs": f"{url}/docs", "MLflow": mlflow[1], "Report": result.report}
        seconds = time.monotonic() - self.begun
        confidence = self.settings.pipelines.gate.confidence
        ending = Ending(result, serving, before, during, swap_seconds, seconds, memory.peak_bytes, urls, confidence)
        print_ending(self.console, ending)
        if not self.plan.once:
            await self._stay()
        return ending

    async def _start_service(self, key: str) -> str:
        port = free_port(self.settings.serving.port or 8700)
        url = f"http://{HOST}:{port}"
        command = [sys.executable, "-m", "sparring.cli", "serve", "--host", HOST, "--port", str(port)]
        with self.console.status("starting the service"):
            child = self.children.start("service", command)
            async with SparringClient(url, key) as client:
                await self._until(child, client.ready)
        self.console.print(f"The service answers at {url} (docs: {url}/docs)")
        return url

    def _start_mlflow(self) -> tuple[Child | None, str]:
        """A server to look at runs with; the worker writes to the same database."""
        uri = self.settings.pipelines.resolved_tracking_uri
        if not uri.startswith("sqlite:"):
            return None, uri
        port = free_port(MLFLOW_PORT)
        artifacts = (self.settings.state_dir / "mlflow-artifacts").absolute().as_uri()
        command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", uri, "--default-artifact-root", artifacts, "--serve-artifacts"]
        return self.children.start("mlflow", command), f"http://{HOST}:{port}"

    async def _await_mlflow(self, mlflow: tuple[Child | None, str]) -> None:
        child, url = mlflow
        if child is None:
            return
        async with httpx.AsyncClient(trust_env=False) as http:

            async def answers() -> bool:
                try:
                    return (await http.get(f"{url}/health")).is_success
                except httpx.TransportError:
                    return False

            await self._until(child, answers)

    async def _until(self, child: Child, ready: Callable[[], Awaitable[bool]]) -> None:
        limit = time.monotonic() + _READY_SECONDS
        while not await ready():
            child.check()
            if time.monotonic() > limit:
                raise ChildFailed(
                    f"{child.name} was not ready in {_READY_SECONDS:.0f} s. The end of {child.log}:\n{child.tail()}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def _call_customers(self, client: SparringClient) -> Tally:
        with Progress(*columns(), console=self.console) as progress:
            task = progress.add_task("customers call over HTTP", total=self.plan.customers, note="")

            def advance(tally: Tally, done: int) -> None:
                rate = tally.success_rate
                note = "" if rate is None else f"success {rate:.0%}".replace("%", " %")
                progress.update(task, completed=done, note=note)

            tally = await crowd(client, self.customers, self.plan.customers, self.plan.at_once, advance)
        self.children.check()
        if tally.failures:
            errors = tally.errors.most_common(3)
            raise ChildFailed(f"{tally.failures} of {self.plan.customers} calls failed: {errors}")
        return tally

    async def _follow_round(
        self, worker: Child, round_before: int, client: SparringClient
    ) -> tuple[RoundResult, Stream]:
        """Until the worker has finished a round; customers keep calling from its evaluation on."""
        stream: Stream | None = None
        idle_since: float | None = None
        with RoundBars(self.console) as bars:
            while True:
                self.children.check()
                status = self._status(worker)
                if status is not None:
                    if status.phase == "failed":
                        raise ChildFailed(f"the round failed: {status.last_error}. More in {worker.log}")
                    bars.show(status.phase, status.step, status.of, status.metrics)
                    idle_since = (idle_since or time.monotonic()) if status.phase == "idle" else None
                    if idle_since is not None and time.monotonic() - idle_since > _IDLE_SECONDS:
                        raise ChildFailed(
                            f"the worker began no round: {status.new_conversations} new conversations of "
                            f"{status.needed} needed. More in {worker.log}"
                        )
                    if status.phase in ("evaluating", "registering") and stream is None:
                        stream = self._stream(client)
                    if status.last_round is not None and status.last_round.version > round_before:
                        return status.last_round, stream or self._stream(client)
                if stream is not None:
                    stream.check()
                await asyncio.sleep(_POLL_SECONDS)

    def _status(self, worker: Child) -> WorkerStatus | None:
        status = read_status(self.settings.pipelines.worker_status_path)
        return status if status is not None and status.pid == worker.process.pid else None

    def _stream(self, client: SparringClient) -> Stream:
        return Stream(client, self.customers, self.plan.stream, pause_seconds=0.2)

    async def _await_swap(
        self, operator: SparringClient, stream: Stream, result: RoundResult
    ) -> tuple[str, float | None]:
        """Until the service serves what was promoted, and some calls have been finished with it."""
        agent = result.verdicts[Role.AGENT]
        ended = time.monotonic()
        swapped: float | None = None
        while True:
            self.children.check()
            stream.check()
            shown = await operator.adapters()
            current = shown.current or "nothing"
            wanted = agent.candidate if agent.promoted else current
            if current == wanted:
                if agent.promoted and swapped is None:
                    swapped = time.monotonic() - ended
                if stream.tally.by_adapter().get(current, 0) >= _CALLS_AFTER_SWAP:
                    return current, swapped
            if why := shown.failed.get(wanted):
                raise ChildFailed(f"the service refused {wanted}: {why}")
            if time.monotonic() - ended > _SWAP_SECONDS:
                raise ChildFailed(f"{_SWAP_SECONDS:.0f} s after promotion the service serves {current}, not {wanted}")
            await asyncio.sleep(_POLL_SECONDS)

    async def _stay(self) -> None:
        self.console.print("Everything stays up until Ctrl-C.")
        try:
            while True:
                self.children.check()
                await asyncio.sleep(1.0)
        except asyncio.CancelledError:
            self.console.print("Stopping.")


def _take_seeds(record: Path) -> int:
    """The first of a block of seeds that no earlier run in this state folder used, not even one that was killed."""
    used = json.loads(record.read_text(encoding="utf-8"))["seeds_used"] if record.is_file() else 0
    record.write_text(json.dumps({"seeds_used": used + _SEEDS_A_RUN}), encoding="utf-8")
    return _FIRST_SEED + int(used)
