"""One round of improvement, from finished conversations to (perhaps) two new champions.

    calibrate   contexts of finished conversations that curation lets through, mixed with generated ones
    refresh     the counterpart's warm start, on what real customers said (pipelines.counterpart_refresh)
    co-train    both roles, isolated, each starting from its champion
    evaluate    candidate and champion on the same held-out scenarios against held-out counterparts
    gate        on the paired difference, each role on its own
    register    adapters, metrics and a report to MLflow; challenger, and champion if promoted

The version that a round will produce is reserved first. Every step leaves its result in the round's folder, so a
round that was killed goes on at the step it was in, under the same version, and registers nothing twice. The lease is
checked before every step and while it reports, so a worker that lost it changes nothing any more. A round whose
champion was replaced meanwhile (a promotion or a roll-back by hand) is superseded: its comparison is void.

Left out on purpose: when to run one (``pipelines.worker``) and who serves the result (serving follows the alias).
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter

from negotiation.adapter import AdapterName
from negotiation.generation import Engine
from negotiation.roles import Role
from negotiation.scenario import Scenario
from pipelines.calibration import FIRST_HELD_OUT_SEED, TrainingContexts, held_out_seeds
from pipelines.config import PipelineSettings
from pipelines.conversations import count_trainable
from pipelines.counterpart_refresh import refresh
from pipelines.curated_conversations import live_conversations
from pipelines.gate import GateDecision, decide
from pipelines.registry import CHALLENGER, CHAMPION, ChampionAdapter, MlflowRegistry, RegistryError
from pipelines.round_lease import HeldLease, LeaseLost
from pipelines.round_log import REPORT_FILE, flat, log_round
from pipelines.round_material import Material, gather
from pipelines.round_state import (
    DatasetReference,
    Phase,
    Progress,
    RoleVerdict,
    RoundResult,
    RoundState,
    latest_state,
    load_state,
    round_directory,
    save_state,
    write_atomically,
)
from pipelines.triggers import Trigger
from training.artifacts import BaseModelRef
from training.checkpoint import CheckpointMismatch
from training.config import TrainingSettings
from training.cotrain import cotrain
from training.counterparts import negotiators
from training.evaluation import evaluate
from training.records import CotrainResult, Price, RoundProgress

Metrics = Mapping[str, Mapping[str, float]]
CONTEXTS_FILE, CURVES_FILE, REFRESH_FOLDER = "contexts.json", "curves.json", "refresh"
log = logging.getLogger(__name__)
_CHECK_SECONDS = 10.0


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
    lease: HeldLease,
    trigger: Trigger = Trigger.MANUAL,
    dataset: DatasetReference | None = None,
) -> RoundResult:
    """Run a round, or go on with the one that was interrupted. Blocking; minutes.

    The registry must have its champions (``MlflowRegistry.bootstrap``). ``trigger`` and ``dataset`` are written down
    with a new round; one that goes on keeps its own. Raises RoundSuperseded, LeaseLost, and whatever training
    raises; after any of them the next call does the right thing. ``progress`` may raise to stop the round.
    """
    engine = engine_factory()
    try:
        current = _begin(settings, registry, scenario, lease, trigger, dataset)
        this = _Round(settings, training, registry, scenario, base, engine, progress, lease, current)
        contexts = this.calibrate()
        this.refresh()
        candidates = this.train(contexts)
        verdicts = this.evaluate(candidates)
        return this.register(candidates, verdicts, contexts)
    finally:
        engine.close()


def _begin(
    settings: PipelineSettings,
    registry: MlflowRegistry,
    scenario: Scenario,
    lease: HeldLease,
    trigger: Trigger,
    dataset: DatasetReference | None,
) -> RoundState:
    lease.check()
    champions = {role: registry.version(role, CHAMPION) for role in Role}
    if missing := [role for role, version in champions.items() if version is None]:
        raise RegistryError(f"no champion for {', '.join(missing)}: bootstrap the registry first")
    versions = {role: version for role, version in champions.items() if version is not None}
    state = latest_state(settings.rounds_dir)
    if state is not None and not state.finished:
        registering = state.phase is Phase.REGISTERING  # then one role may be promoted already, by ourselves
        if state.scenario == scenario.name and (registering or state.champions == versions):
            state = state.model_copy(update={"lease_token": lease.token})
            _save(settings, state)
            return state
        superseded = {"phase": Phase.SUPERSEDED, "finished_at": datetime.now(UTC)}
        _save(settings, state.model_copy(update=superseded))
        registry.end_run(state.run_id, failed=True)
    tags = {"trigger": str(trigger), "lease_token": str(lease.token), "lease_owner": lease.owner}
    run_id = registry.start_run(f"round-{scenario.name}", tags)
    state = RoundState(
        phase=Phase.CALIBRATING,
        version=registry.reserve(run_id),
        run_id=run_id,
        scenario=scenario.name,
        champions=versions,
        conversations=count_trainable(settings.datasets_dir, scenario.name),
        trigger=trigger,
        started_at=datetime.now(UTC),
        lease_token=lease.token,
        dataset=dataset,
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
    lease: HeldLease
    state: RoundState
    checked_at: float = 0.0

    @property
    def directory(self) -> Path:
        return round_directory(self.settings.rounds_dir, self.state.version)

    def calibrate(self) -> TrainingContexts:
        """The contexts to train on; fixed at the first try, so that a resumed round trains on the same."""
        self._report(Phase.CALIBRATING, 0, 1)
        material = self._material()
        self._report(Phase.CALIBRATING, 1, 1)
        return TrainingContexts(self.scenario, self.state.version, material.contexts, self.settings.live_share)

    def _material(self) -> Material:
        material = gather(self.settings, self.scenario, self.directory / CONTEXTS_FILE, datetime.now(UTC))
        if self.state.phase is Phase.CALIBRATING:
            self._advance(Phase.CALIBRATING, skipped_contexts=material.skipped, curation=material.curation)
        return material

    def refresh(self) -> Path | None:
        """The counterpart's adapter to train from where a refresh made one, else None; made once per round."""
        name = AdapterName(role=Role.COUNTERPART, version=self.state.version)
        output = self.directory / REFRESH_FOLDER
        if self.state.refresh is None:
            self._report(Phase.REFRESHING, 0, 1)
            chosen = self._material().conversations
            record = refresh(
                live_conversations(self.settings.datasets_dir, self.scenario.name, chosen),
                self._champion(Role.COUNTERPART).fetch(),
                self.base,
                self.scenario,
                self.settings.refresh,
                self.training,
                name,
                output,
                lambda at: self._report(Phase.REFRESHING, at.step, at.of),
            )
            log.info("refresh of the counterpart: %s", record.reason)
            self._advance(Phase.REFRESHING, refresh=record)
            self._report(Phase.REFRESHING, 1, 1)
        return output / str(name) if self.state.refresh and self.state.refresh.applied else None

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
        start[Role.COUNTERPART] = self.refresh() or start[Role.COUNTERPART]

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
        self._check()
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
        log_round(
            self.registry, self.directory, self.state, result, self._params(), {Role(r): c for r, c in curves.items()}
        )
        for role in candidates:
            self._check()
            tags = {
                "sparring.scenario": self.scenario.name,
                "sparring.promoted": str(verdicts[role].promoted).lower(),
                "sparring.method": str(self.training.method),
            }
            self.registry.register(role, candidates[role], self.state.run_id, tags)
            self.registry.set_alias(role, CHALLENGER, self.state.version)
        self._promote(verdicts)
        self.registry.end_run(self.state.run_id)
        self._advance(Phase.DONE, result=result, finished_at=datetime.now(UTC))
        self._report(Phase.DONE, 1, 1)
        return result

    def _promote(self, verdicts: Mapping[Role, RoleVerdict]) -> None:
        for role, verdict in verdicts.items():
            if not verdict.promoted:
                continue
            self._check()
            try:
                self.registry.promote(role, self.state.version, expected=self.state.champions[role])
            except RegistryError as error:
                self._advance(Phase.SUPERSEDED, finished_at=datetime.now(UTC))
                self.registry.end_run(self.state.run_id, failed=True)
                raise RoundSuperseded(str(error)) from error

    def _params(self) -> dict[str, object]:
        return {
            "base_model": self.base.name,
            "base_sha256": self.base.sha256,
            "held_out.first_seed": held_out_seeds(self.state.version, 1)[0],
            "held_out.scenarios": self.settings.evaluation_scenarios,
            **flat("training", self.training),
            **flat("curation", self.settings.curation),
            **flat("refresh", self.settings.refresh),
            **flat("gate", self.settings.gate),
            **flat("counterpart_gate", self.settings.counterpart_gate),
        }

    def _champion(self, role: Role) -> ChampionAdapter:
        return self.registry.adapter(role, self.state.champions[role])

    def _check(self) -> None:
        self.lease.check()
        self.checked_at = time.monotonic()

    def _advance(self, phase: Phase, **changes: object) -> None:
        stored = load_state(self.directory)
        if stored is not None and stored.lease_token > self.lease.token:
            raise LeaseLost(
                f"round {stored.version} was gone on with under lease token {stored.lease_token}, ours is "
                f"{self.lease.token}: another worker runs it"
            )
        self.state = self.state.model_copy(update={"phase": phase, **changes})
        _save(self.settings, self.state)

    def _report(
        self, phase: Phase, step: int, of: int, metrics: Mapping[str, Mapping[str, float]] | None = None
    ) -> None:
        if time.monotonic() - self.checked_at > _CHECK_SECONDS:
            self._check()
        self.progress(Progress(str(phase), step, of, self.state.version, metrics or {}))

    def _training_progress(self, at: RoundProgress) -> None:
        self._report(Phase.TRAINING, at.step, at.of, {str(role): dict(m) for role, m in at.metrics.items()})
