"""One round of improvement, from finished conversations to (perhaps) two new champions.

    calibrate   contexts of finished live conversations, mixed with generated ones
    co-train    both roles, isolated, each starting from its champion
    evaluate    candidate and champion on the same held-out scenarios against held-out counterparts
    gate        on the paired difference, each role on its own
    register    adapters, metrics and a report to MLflow; challenger, and champion if promoted

The version that a round will produce is reserved first. Every step leaves its result in the round's folder, so a
round that was killed goes on at the step it was in, under the same version, and registers nothing twice. A round
whose champion was replaced meanwhile (a promotion or a roll-back by hand) is superseded: its comparison is void.

Left out on purpose: when to run one (``pipelines.worker``) and who serves the result (serving follows the alias).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from negotiation.generation import Engine
from negotiation.roles import Role
from negotiation.scenario import Context, Scenario
from pipelines.calibration import FIRST_HELD_OUT_SEED, TrainingContexts, held_out_seeds, usable_contexts
from pipelines.config import PipelineSettings
from pipelines.conversations import count_trainable, finished_contexts
from pipelines.gate import GateDecision, decide
from pipelines.registry import CHALLENGER, CHAMPION, ChampionAdapter, MlflowRegistry, RegistryError
from pipelines.report import write_report
from pipelines.round_state import (
    Phase,
    Progress,
    RoleVerdict,
    RoundResult,
    RoundState,
    latest_state,
    round_directory,
    save_state,
    write_atomically,
)
from training.artifacts import BaseModelRef
from training.checkpoint import CheckpointMismatch
from training.config import TrainingSettings
from training.cotrain import cotrain
from training.counterparts import negotiators
from training.evaluation import evaluate
from training.records import CotrainResult, Price, RoundProgress

Metrics = Mapping[str, Mapping[str, float]]
CONTEXTS_FILE, CURVES_FILE, REPORT_FILE = "contexts.json", "curves.json", "report.html"


class RoundSuperseded(RuntimeError):
    """The champion that this round was judged against is champion no more. Run a new round."""


def run_round(
    settings: PipelineSettings,
    training: TrainingSettings,
    *,
    registry: MlflowRegistry,
    scenario: Scenario,
    base: BaseModelRef,
    engine_factory: Callable[[], Engine],
    progress: Callable[[Progress], None],
) -> RoundResult:
    """Run a round, or go on with the one that was interrupted. Blocking; minutes.

    The registry must have its champions (``MlflowRegistry.bootstrap``). Raises RoundSuperseded, and whatever
    training raises; after either the next call does the right thing. ``progress`` may raise to stop the round.
    """
    engine = engine_factory()
    try:
        current = _begin(settings, registry, scenario)
        this = _Round(settings, training, registry, scenario, base, engine, progress, current)
        contexts = this.calibrate()
        candidates = this.train(contexts)
        verdicts = this.evaluate(candidates)
        return this.register(candidates, verdicts, contexts)
    finally:
        engine.close()


def _begin(settings: PipelineSettings, registry: MlflowRegistry, scenario: Scenario) -> RoundState:
    champions = {role: registry.version(role, CHAMPION) for role in Role}
    if missing := [role for role, version in champions.items() if version is None]:
        raise RegistryError(f"no champion for {', '.join(missing)}: bootstrap the registry first")
    versions = {role: version for role, version in champions.items() if version is not None}
    state = latest_state(settings.rounds_dir)
    if state is not None and not state.finished:
        registering = state.phase is Phase.REGISTERING  # then one role may be promoted already, by ourselves
        if state.scenario == scenario.name and (registering or state.champions == versions):
            return state
        _save(settings, state.model_copy(update={"phase": Phase.SUPERSEDED}))
        registry.end_run(state.run_id, failed=True)
    run_id = registry.start_run(f"round-{scenario.name}")
    state = RoundState(
        phase=Phase.CALIBRATING,
        version=registry.reserve(run_id),
        run_id=run_id,
        scenario=scenario.name,
        champions=versions,
        conversations=count_trainable(settings.datasets_dir, scenario.name),
    )
    _save(settings, state)
    return state


def _save(settings: PipelineSettings, state: RoundState) -> None:
    save_state(round_directory(settings.rounds_dir, state.version), state)


@dataclass
class _Round:
    settings: PipelineSettings
    training: TrainingSettings
    registry: MlflowRegistry
    scenario: Scenario
    base: BaseModelRef
    engine: Engine
    progress: Callable[[Progress], None]
    state: RoundState

    @property
    def directory(self) -> Path:
        return round_directory(self.settings.rounds_dir, self.state.version)

    def calibrate(self) -> TrainingContexts:
        """The contexts to train on; fixed at the first try, so that a resumed round trains on the same."""
        path = self.directory / CONTEXTS_FILE
        self._report(Phase.CALIBRATING, 0, 1)
        if not path.exists():
            found = finished_contexts(
                self.settings.datasets_dir, self.scenario.name, limit=self.settings.max_live_contexts
            )
            usable, skipped = usable_contexts(self.scenario, [context for _, context in found])
            self._advance(Phase.TRAINING, skipped_contexts=skipped)
            write_atomically(path, _ContextList(contexts=usable).model_dump_json())
        live = _ContextList.model_validate_json(path.read_bytes()).contexts
        self._report(Phase.CALIBRATING, 1, 1)
        return TrainingContexts(self.scenario, self.state.version, live, self.settings.live_share)

    def train(self, contexts: TrainingContexts) -> dict[Role, Path]:
        """Co-train both roles from their champions; returns the exported candidates."""
        output = self.directory / "training"
        done = self.directory / CURVES_FILE
        if not done.exists():
            self._advance(Phase.TRAINING)
            started = time.monotonic()
            trained = self._cotrain(contexts, output)
            self._advance(Phase.EVALUATING, seconds=self.state.seconds + time.monotonic() - started)
            adapters = {str(role): str(path.relative_to(self.directory)) for role, path in trained.adapters.items()}
            write_atomically(
                done, json.dumps({"adapters": adapters, "curves": trained.metrics, "price": asdict(trained.price)})
            )
        adapters = json.loads(done.read_text(encoding="utf-8"))["adapters"]
        return {Role(role): self.directory / path for role, path in adapters.items()}

    def _cotrain(self, contexts: TrainingContexts, output: Path) -> CotrainResult:
        """Train, or go on with what a killed process left; what it left under other settings begins anew."""
        start: dict[Role, Path | None] = {role: self._champion(role).fetch() for role in Role}

        def run() -> CotrainResult:
            return cotrain(
                self.training,
                self.engine,
                self.scenario,
                contexts,
                start,
                self.state.version,
                output,
                self.base,
                self._training_progress,
            )

        try:
            return run()
        except (CheckpointMismatch, FileExistsError):
            # Nothing of an unfinished round was ever published.
            shutil.rmtree(output)
            return run()

    def evaluate(self, candidates: Mapping[Role, Path]) -> dict[Role, RoleVerdict]:
        """Judge each role's candidate against its champion on conversations that neither has met."""
        verdicts = dict(self.state.verdicts)
        seeds = held_out_seeds(self.state.version, self.settings.evaluation_scenarios)
        assert seeds[0] >= FIRST_HELD_OUT_SEED, "held-out scenarios must be none that training may draw"
        for number, role in enumerate(candidates):
            if role in verdicts:
                continue
            candidate, champion = f"{role}@{self.state.version}", self._champion(role).name
            decision = self._compare(
                role,
                {candidate: candidates[role], champion: self._champion(role).fetch()},
                seeds,
                number,
                len(candidates),
            )
            verdicts[role] = RoleVerdict.of(role, champion, candidate, decision)
            self._advance(Phase.EVALUATING, verdicts=dict(verdicts))
        return verdicts

    def _compare(
        self, role: Role, adapters: Mapping[str, Path], seeds: Sequence[int], number: int, roles: int
    ) -> GateDecision:
        opponents = negotiators(self.scenario.name, role.other, "held_out")
        results = []
        for turn, (name, directory) in enumerate(adapters.items(), start=number * len(adapters)):

            def report(done: int, of: int, turn: int = turn) -> None:
                self._report(Phase.EVALUATING, turn * of + done, roles * len(adapters) * of)

            self.engine.load_adapter(name, directory)
            try:
                results.append(
                    evaluate(
                        self.engine,
                        self.scenario,
                        name,
                        role,
                        opponents,
                        seeds,
                        max_message_tokens=self.training.max_message_tokens,
                        progress=report,
                    )
                )
            finally:
                self.engine.unload_adapter(name)
        candidate, champion = results
        settings = self.settings.gate_of(role)
        return decide(candidate.episodes, champion.episodes, settings)

    def register(
        self, candidates: Mapping[Role, Path], verdicts: Mapping[Role, RoleVerdict], contexts: TrainingContexts
    ) -> RoundResult:
        """Everything to MLflow, then the aliases. Safe to repeat."""
        self._advance(Phase.REGISTERING)
        self._report(Phase.REGISTERING, 0, 1)
        written = json.loads((self.directory / CURVES_FILE).read_text(encoding="utf-8"))
        curves = written["curves"]
        result = RoundResult(
            version=self.state.version,
            run_id=self.state.run_id,
            scenario=self.scenario.name,
            trained_on=len(contexts.live),
            steps=max((len(steps) for steps in curves.values()), default=0),
            seconds=self.state.seconds,
            verdicts=verdicts,
            report=str(self.directory / REPORT_FILE),
            price=TypeAdapter(Price).validate_python(written["price"]),
        )
        self._log(result, {Role(role): steps for role, steps in curves.items()})
        for role in candidates:
            tags = {
                "sparring.scenario": self.scenario.name,
                "sparring.promoted": str(verdicts[role].promoted).lower(),
                "sparring.method": str(self.training.method),
            }
            self.registry.register(role, candidates[role], self.state.run_id, tags)
            self.registry.set_alias(role, CHALLENGER, self.state.version)
        self._promote(verdicts)
        self.registry.end_run(self.state.run_id)
        self._advance(Phase.DONE, result=result)
        self._report(Phase.DONE, 1, 1)
        return result

    def _promote(self, verdicts: Mapping[Role, RoleVerdict]) -> None:
        for role, verdict in verdicts.items():
            if not verdict.promoted:
                continue
            try:
                self.registry.promote(role, self.state.version, expected=self.state.champions[role])
            except RegistryError as error:
                self._advance(Phase.SUPERSEDED)
                self.registry.end_run(self.state.run_id, failed=True)
                raise RoundSuperseded(str(error)) from error

    def _log(self, result: RoundResult, curves: Mapping[Role, Sequence[Mapping[str, float]]]) -> None:
        params = {
            "scenario": self.scenario.name,
            "base_model": self.base.name,
            "base_sha256": self.base.sha256,
            **{f"champion.{role}": version for role, version in self.state.champions.items()},
            "live_contexts": result.trained_on,
            "skipped_contexts": self.state.skipped_contexts,
            "held_out.first_seed": held_out_seeds(self.state.version, 1)[0],
            "held_out.scenarios": self.settings.evaluation_scenarios,
            **_flat("training", self.training),
            **_flat("gate", self.settings.gate),
            **_flat("counterpart_gate", self.settings.counterpart_gate),
        }
        rows = [
            (f"{role}/{name}", value, step)
            for role, steps in curves.items()
            for step, metrics in enumerate(steps)
            for name, value in metrics.items()
        ]
        for role, verdict in result.verdicts.items():
            for where in ("before", "after", "difference"):
                for metric, interval in getattr(verdict, where).items():
                    rows += [(f"gate/{role}/{where}/{metric}/{k}", v, 0) for k, v in asdict(interval).items()]
        if result.price is not None:
            rows += [(f"price/{name}", value, 0) for name, value in result.price.figures().items()]
        write_report(self.directory / REPORT_FILE, result, curves, params)
        self.registry.log_params(self.state.run_id, params)
        self.registry.log_metrics(self.state.run_id, rows, int(time.time() * 1000))
        self.registry.log_file(self.state.run_id, self.directory / REPORT_FILE)

    def _champion(self, role: Role) -> ChampionAdapter:
        return self.registry.adapter(role, self.state.champions[role])

    def _advance(self, phase: Phase, **changes: object) -> None:
        self.state = self.state.model_copy(update={"phase": phase, **changes})
        _save(self.settings, self.state)

    def _report(
        self, phase: Phase, step: int, of: int, metrics: Mapping[str, Mapping[str, float]] | None = None
    ) -> None:
        self.progress(Progress(str(phase), step, of, self.state.version, metrics or {}))

    def _training_progress(self, at: RoundProgress) -> None:
        self._report(Phase.TRAINING, at.step, at.of, {str(role): dict(m) for role, m in at.metrics.items()})


class _ContextList(BaseModel):
    contexts: tuple[Context, ...]


def _flat(prefix: str, settings: BaseModel) -> dict[str, object]:
    def walk(key: str, value: object) -> dict[str, object]:
        if isinstance(value, dict):
            return {name: leaf for part, item in value.items() for name, leaf in walk(f"{key}.{part}", item).items()}
        return {key: value}

    return walk(prefix, settings.model_dump(mode="json"))
