"""A whole round on the tiny model with a real registry: it ends in versions, and goes on where it was killed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from negotiation.catalogue import scenario_named
from negotiation.events import Closed, ConversationEvent, Message, Opened, OutcomeReported, Payload
from negotiation.roles import Role
from negotiation.scenario import CloseReason
from pipelines import round as round_module
from pipelines.config import CurationSettings, GateSettings, PipelineSettings, RefreshSettings
from pipelines.dataset import DatasetWriter
from pipelines.event_log import SqliteEventLog
from pipelines.registry import CHALLENGER, CHAMPION, MlflowRegistry
from pipelines.round import RoundSuperseded, run_round
from pipelines.round_lease import RECORD_FILE, FileLease, LeaseLost
from pipelines.round_state import DatasetReference, Phase, Progress, RoundResult, latest_state
from pipelines.triggers import Trigger
from serving.engines.in_process import InProcessEngine
from training.artifacts import BaseModelRef, initialise_adapter
from training.config import AdapterSettings, TrainingSettings

pytestmark = pytest.mark.service

TRAINING = TrainingSettings(
    steps=1,
    scenarios_per_step=2,
    group_size=2,
    max_message_tokens=8,
    max_logprob_gap=1.0,
    threads=1,
    adapter=AdapterSettings(rank=4, alpha=8, target_modules=("q_proj", "v_proj")),
)


class Bench:
    """One deployment's settings, registry and model."""

    def __init__(self, folder: Path, model: Path) -> None:
        gate = GateSettings(min_scenarios=2, resamples=200)
        self.settings = PipelineSettings(
            state_dir=folder,
            evaluation_scenarios=2,
            gate=gate,
            counterpart_gate=gate,
            min_conversations=1,
            curation=CurationSettings(quarantine_hours=0),
        )
        digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
        self.base = BaseModelRef(model, "tiny", digest)
        self.registry = MlflowRegistry(self.settings.resolved_tracking_uri, self.settings.adapters_dir)
        self.registry.bootstrap(
            lambda name, directory: initialise_adapter(self.base, name, TRAINING.adapter, 0, directory)
        )
        self.seen: list[Progress] = []

    def engine(self) -> InProcessEngine:
        return InProcessEngine(self.base.path, self.base.sha256, max_adapters=8, max_batch=16, threads=1)

    def run(self, progress: Callable[[Progress], None] | None = None) -> RoundResult:
        with FileLease(self.settings.rounds_dir).hold() as lease:
            return run_round(
                self.settings,
                TRAINING,
                registry=self.registry,
                scenario=scenario_named("telesales"),
                base=self.base,
                engine_factory=self.engine,
                progress=progress or self.seen.append,
                lease=lease,
                trigger=Trigger.DRIFT,
                dataset=DatasetReference("7", "ab" * 32),
            )


@pytest.fixture
def bench(tmp_path: Path, tiny_model_dir: Path) -> Bench:
    return Bench(tmp_path / "var", tiny_model_dir)


class Killed(BaseException):
    """As good as SIGKILL to the code under test: nothing there catches it."""


def publish(bench: Bench, count: int, said: str = "") -> None:
    log = SqliteEventLog(bench.settings.event_log_path)
    for number in range(count):
        context = scenario_named("telesales").generate(number)
        known = {Role.AGENT: context.views[Role.AGENT]}
        payloads: list[Payload] = [
            Opened(context=context.model_copy(update={"views": known}), adapter="agent@1"),
            *([Message(role=Role.COUNTERPART, text=f"{said} {number}", shown=f"{said} {number}")] if said else []),
            Closed(reason=CloseReason.ABANDONED),
            OutcomeReported(agreed=False),
        ]
        log.append(
            [
                ConversationEvent(tenant="t", conversation_id=f"c{number}", sequence=n, consent=True, payload=payload)
                for n, payload in enumerate(payloads)
            ]
        )
    writer = DatasetWriter(log, bench.settings.datasets_dir)
    writer.consume()
    writer.close()
    log.close()


def test_a_round_ends_in_registered_versions_a_report_and_a_reasoned_verdict(bench: Bench) -> None:
    publish(bench, 5)
    result = bench.run()
    assert (result.version, result.trained_on, result.steps) == (2, 5, 1)
    for role in Role:
        verdict = result.verdicts[role]
        assert (verdict.champion, verdict.candidate) == (f"{role}@1", f"{role}@2")
        assert verdict.reasons
        assert verdict.scenarios == 2
        assert bench.registry.version(role, CHALLENGER) == 2
        assert bench.registry.version(role, CHAMPION) == (2 if verdict.promoted else 1)
        assert bench.registry.adapter(role, 2).fetch().name == f"{role}@2"
    assert "<svg" in Path(result.report).read_text(encoding="utf-8")
    run = bench.registry.client.get_run(result.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["training.steps"] == "1"
    assert (run.data.tags["trigger"], run.data.params["trigger"]) == ("drift", "drift")
    assert run.data.params["dataset.version"] == "7"
    assert (run.data.metrics["curation.kept"], run.data.metrics["curation.left_out.quarantine"]) == (5, 0)
    for role in Role:
        assert any(name.startswith(f"{role}/") for name in run.data.metrics)
        assert f"gate/{role}/difference/success/mean" in run.data.metrics
    assert {"calibrating", "training", "evaluating", "registering", "done"} <= {at.phase for at in bench.seen}
    state = latest_state(bench.settings.rounds_dir)
    assert state is not None
    assert (state.phase, state.conversations, state.result) == (Phase.DONE, 5, result)
    assert state.trigger is Trigger.DRIFT
    assert state.curation["kept"] == 5
    assert state.refresh is not None
    assert state.refresh.reason == "skipped: 0 turns of real customers, 200 needed"
    assert state.finished_at is not None


def test_conversations_in_quarantine_are_counted_and_not_learned_from(bench: Bench) -> None:
    publish(bench, 3)
    bench.settings = bench.settings.model_copy(update={"curation": CurationSettings(quarantine_hours=1)})
    result = bench.run()
    assert result.trained_on == 0
    assert bench.registry.client.get_run(result.run_id).data.metrics["curation.left_out.quarantine"] == 3


def test_a_worker_that_lost_its_lease_registers_nothing_and_the_next_goes_on(bench: Bench) -> None:
    def lose(at: Progress) -> None:
        if at.phase == "evaluating":
            # As a second holder would, who took the first for dead.
            record = bench.settings.rounds_dir / RECORD_FILE
            record.write_text('{"owner": "other:7", "token": 2}', encoding="utf-8")

    with pytest.raises(LeaseLost, match="held by other:7 with token 2"):
        bench.run(lose)
    versions = bench.registry.client.search_model_versions("name = 'sparring-agent'")
    assert {int(version.version): version.tags["sparring.state"] for version in versions} == {
        1: "ready",
        2: "reserved",
    }
    assert bench.run().version == 2


@pytest.mark.parametrize("phase", ["calibrating", "training", "evaluating", "registering"])
def test_a_killed_round_goes_on_under_the_same_version(
    bench: Bench, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(at: Progress) -> None:
        if at.phase == phase and (phase == "calibrating" or at.step > 0 or phase == "registering"):
            raise Killed

    trainings: list[int] = []
    cotrain = round_module.cotrain
    monkeypatch.setattr(round_module, "cotrain", lambda *a, **k: (trainings.append(1), cotrain(*a, **k))[1])
    with pytest.raises(Killed):
        bench.run(kill)
    result = bench.run()
    assert result.version == 2
    assert len(trainings) == (2 if phase == "training" else 1)
    for role in Role:
        versions = bench.registry.client.search_model_versions(f"name = 'sparring-{role}'")
        assert sorted(int(version.version) for version in versions) == [1, 2]
    assert bench.run().version == 3


def test_a_round_whose_champion_was_replaced_is_superseded(bench: Bench) -> None:
    def kill(at: Progress) -> None:
        if at.phase == "evaluating":
            raise Killed

    first = bench.run()
    with pytest.raises(Killed):
        bench.run(kill)
    state = latest_state(bench.settings.rounds_dir)
    assert state is not None
    other = first.version if state.champions[Role.AGENT] == 1 else 1
    bench.registry.set_alias(Role.AGENT, CHAMPION, other)
    result = bench.run()
    assert result.version == state.version + 1
    assert result.verdicts[Role.AGENT].champion == f"agent@{other}"
    assert bench.registry.client.get_run(state.run_id).info.status == "FAILED"


def test_a_promotion_never_replaces_a_champion_that_was_not_judged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.run()
    judge = round_module.decide

    def promoting(*arguments: object, **options: object) -> object:
        from dataclasses import replace

        return replace(judge(*arguments, **options), promote=True)  # type: ignore[arg-type]

    monkeypatch.setattr(round_module, "decide", promoting)

    def meddle(at: Progress) -> None:
        if at.phase == "registering":
            champion = bench.registry.version(Role.AGENT, CHAMPION)
            bench.registry.set_alias(Role.AGENT, CHAMPION, first.version if champion == 1 else 1)

    with pytest.raises(RoundSuperseded, match="evaluate it against"):
        bench.run(meddle)
    state = latest_state(bench.settings.rounds_dir)
    assert state is not None
    assert state.phase is Phase.SUPERSEDED


def kill_in(phase: str, step: int) -> Callable[[Progress], None]:
    def kill(at: Progress) -> None:
        if at.phase == phase and at.step >= step:
            raise Killed

    return kill


def test_a_refreshed_counterpart_is_the_same_after_a_kill_and_is_trained_from(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    digests, starts = [], []
    for name, kills in (("straight", ()), ("killed", (("refreshing", 1),))):
        bench = Bench(tmp_path / name, tiny_model_dir)
        refresh = RefreshSettings(min_turns=10, max_steps=3, batch_size=8, learning_rate=1e-2)
        bench.settings = bench.settings.model_copy(update={"refresh": refresh})
        publish(bench, 20, "I want the car for")
        for phase, step in (*kills, ("training", 0)):
            with pytest.raises(Killed):
                bench.run(kill_in(phase, step))
        state = latest_state(bench.settings.rounds_dir)
        assert state is not None
        assert state.refresh is not None
        assert state.refresh.applied
        folder = bench.settings.rounds_dir / "000002" / "refresh" / "counterpart@2"
        digests.append((folder / "manifest.json").read_bytes())
        starts.append(folder)
    assert digests[0] == digests[1]
    cotrained: list[Path] = []
    cotrain = round_module.cotrain

    def spy(*arguments: Any, **options: Any) -> Any:
        cotrained.append(arguments[4][Role.COUNTERPART])
        return cotrain(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_module, "cotrain", spy)
        result = bench.run()
    assert cotrained == [starts[1]]
    metrics = bench.registry.client.get_run(result.run_id).data.metrics
    assert metrics["refresh.perplexity_after"] < metrics["refresh.perplexity_before"]
    assert metrics["refresh.turns"] == 20
