"""Co-training, the core loop: isolated bilateral reinforcement learning (IB-RL, arXiv 2608.06735).

Each step plays one joint rollout and updates both roles, each from its own view alone. A share of the scenario
groups is joint (the two learning roles meet); in the other groups each role meets scripted training players, so
that neither learns the quirks of one partner only. Left out on purpose: evaluation (:mod:`training.evaluation`)
and any decision about what is served.

Run: ``sparring train``.
"""

from __future__ import annotations

import logging
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from negotiation.adapter import AdapterManifest, AdapterName
from negotiation.generation import Engine, Sampling
from negotiation.roles import Role
from negotiation.scenario import Context, Scenario
from training.artifacts import BaseModelRef
from training.config import TrainingSettings
from training.counterparts import Negotiator, negotiators
from training.joint_rollout import Dialogue, ModelPlayer, Player, Rollout, ScriptedPlayer, Table, play
from training.learner import RoleLearner, TrainingHalted, UpdateMetrics
from training.rendezvous import Rendezvous
from training.views import TrainingView, training_view
from training.wording import StrangeNegotiator

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepMetrics:
    """One step of both roles. Success and agreement are over the dialogues in which the role was a model."""

    step: int
    success: dict[Role, float]
    agreement: dict[Role, float]
    reward: dict[Role, float]
    tokens_sampled: dict[Role, int]
    dropped: int
    overflowed: int
    rollout_seconds: float
    updates: dict[Role, UpdateMetrics] = field(default_factory=dict)

    def of_role(self, role: Role) -> dict[str, float]:
        """One role's numbers, by name."""
        update = {k: float(v) for k, v in asdict(self.updates[role]).items() if isinstance(v, int | float)}
        return {
            **update,
            "success": self.success[role],
            "agreement": self.agreement[role],
            "reward": self.reward[role],
            "tokens_sampled": float(self.tokens_sampled[role]),
            "dropped": float(self.dropped),
            "overflowed": float(self.overflowed),
            "rollout_seconds": self.rollout_seconds,
        }


@dataclass(frozen=True)
class RoundProgress:
    """Reported when a step is complete; ``metrics`` by role and name."""

    step: int
    of: int
    metrics: dict[Role, dict[str, float]]


@dataclass(frozen=True)
class CotrainResult:
    """The trained adapters and how they came to be."""

    adapters: dict[Role, Path]
    manifests: dict[Role, AdapterManifest]
    steps: list[StepMetrics]
    tokens_sampled: dict[Role, int]
    tokens_trained: dict[Role, int]
    seconds: float

    @property
    def metrics(self) -> dict[Role, list[dict[str, float]]]:
        """Each role's numbers, one row a step."""
        return {role: [step.of_role(role) for step in self.steps] for role in Role}


class Cotraining:
    """One run. ``contexts(index)`` gives the index-th training scenario; ``start`` the adapters to go on from."""

    def __init__(
        self,
        settings: TrainingSettings,
        engine: Engine,
        scenario: Scenario,
        contexts: Callable[[int], Context],
        start: dict[Role, Path | None],
        version: int,
        output: Path,
        base: BaseModelRef,
        progress: Callable[[RoundProgress], None],
    ) -> None:
        self.settings, self.engine, self.scenario = settings, engine, scenario
        self.contexts, self.version, self.output, self.progress = contexts, version, output, progress
        self.steps: list[StepMetrics] = []
        self._started = time.monotonic()
        torch.set_num_threads(settings.threads)
        self._sampling = Sampling(max_tokens=settings.max_message_tokens, temperature=1.0)
        self._rendezvous: Rendezvous[Sequence[int], list[TrainingView]] = Rendezvous(
            (Role.AGENT, Role.COUNTERPART), self._joint_rollout
        )
        self.learners = {
            role: RoleLearner(
                role,
                settings,
                base,
                start.get(role),
                output / "learners" / role,
                meet=lambda step, indices, role=role: self._rendezvous.meet(role, indices),  # type: ignore[misc]
                report=self._on_update,
            )
            for role in Role
        }

    def run(self) -> CotrainResult:
        """Every step of both learners, then export. Raises FileExistsError, TrainingHalted and RolloutFailed."""
        names = {role: AdapterName(role=role, version=self.version) for role in Role}
        adapters = {role: self.output / str(names[role]) for role in Role}
        for directory in adapters.values():
            # Found out at the end, it would cost the whole run.
            if directory.exists():
                raise FileExistsError(f"{directory} exists: adapter versions are immutable, choose a new version")
        bases = {role: learner.base_sha256() for role, learner in self.learners.items()}
        self._rendezvous.run({role: learner.train for role, learner in self.learners.items()})
        for role, learner in self.learners.items():
            if learner.base_sha256() != bases[role]:
                raise TrainingHalted(f"the base weights under the {role}'s adapter changed")
        return CotrainResult(
            adapters=adapters,
            manifests={role: self.learners[role].export(names[role], adapters[role]) for role in Role},
            steps=self.steps,
            tokens_sampled={role: sum(step.tokens_sampled[role] for step in self.steps) for role in Role},
            tokens_trained={role: self.learners[role].tokens_trained for role in Role},
            seconds=time.monotonic() - self._started,
        )

    def _joint_rollout(self, requests: dict[str, Sequence[int]]) -> dict[str, list[TrainingView]]:
        asked = list(requests[Role.AGENT])
        if asked != list(requests[Role.COUNTERPART]):
            raise TrainingHalted("the two learners asked for different scenarios: their datasets must have one order")
        step, size = len(self.steps), self.settings.group_size
        groups = asked[::size]
        if asked != [index for index in groups for _ in range(size)]:
            raise TrainingHalted(f"scenarios must come in runs of group_size {size}, once expanded")
        started = time.monotonic()
        with _Loaded(self.engine, self.learners, self.version, step, self.output / "steps") as players:
            tables = self._tables(step, groups, players)
            rollout = play(self.engine, self.scenario, [t for pair in tables for t in pair.values()], self._sampling)
        shares = iter(rollout.dialogues)
        dialogues: dict[Role, list[Dialogue]] = {role: [] for role in Role}
        for pair in tables:
            played = {roles: next(shares) for roles in pair}
            for role in Role:
                dialogues[role].append(next(d for roles, d in played.items() if role in roles))
        self._record(step, dialogues, rollout, time.monotonic() - started)
        return {role: [training_view(dialogue, role) for dialogue in dialogues[role]] for role in Role}

    def _tables(
        self, step: int, groups: Sequence[int], players: dict[Role, Player]
    ) -> list[dict[tuple[Role, ...], Table]]:
        """For each dialogue slot: one table for both roles, or one for each role against a scripted player."""
        rng = random.Random(f"{self.settings.seed}:opponents:{step}")
        joint = set(rng.sample(range(len(groups)), round(self.settings.joint_share * len(groups))))
        tables: list[dict[tuple[Role, ...], Table]] = []
        for position, index in enumerate(groups):
            context = self.contexts(index)
            scripted: dict[Role, Player] = {}
            for role in Role:
                partner: Negotiator = rng.choice(negotiators(self.scenario.name, role, "train"))
                if rng.random() < self.settings.strange_share:
                    partner = StrangeNegotiator(partner)
                scripted[role] = ScriptedPlayer(partner)
            for _ in range(self.settings.group_size):
                seed = rng.getrandbits(40)
                if position in joint:
                    tables.append({(Role.AGENT, Role.COUNTERPART): Table(context, players, seed)})
                    continue
                tables.append(
                    {
                        (role,): Table(context, {role: players[role], role.other: scripted[role.other]}, seed)
                        for role in Role
                    }
                )
        return tables

    def _record(self, step: int, dialogues: dict[Role, list[Dialogue]], rollout: Rollout, seconds: float) -> None:
        share = rollout.dropped / max(1, len(rollout.dialogues))
        if share > self.settings.max_failed_share:
            raise TrainingHalted(
                f"step {step + 1}: {share:.0%} of episodes were dropped, the limit is "
                f"{self.settings.max_failed_share:.0%}: the log has each reason"
            )

        def mean(role: Role, value: Callable[[Dialogue], float]) -> float:
            return sum(map(value, dialogues[role])) / len(dialogues[role])

        self.steps.append(
            StepMetrics(
                step=step + 1,
                success={role: mean(role, lambda d: d.outcome.success) for role in Role},
                agreement={role: mean(role, lambda d: d.outcome.agreed) for role in Role},
                reward={role: mean(role, lambda d, role=role: d.outcome.rewards[role]) for role in Role},  # type: ignore[misc]
                tokens_sampled={
                    role: sum(sum(d.transcripts[role].sampled) for d in dialogues[role]) for role in Role
                },
                dropped=rollout.dropped,
                overflowed=sum(d.overflowed for d in rollout.dialogues),
                rollout_seconds=seconds,
            )
        )

    def _on_update(self, role: Role, update: UpdateMetrics) -> None:
        metrics = self.steps[update.step - 1]
        metrics.updates[role] = update
        if len(metrics.updates) == len(Role):
            self.progress(
                RoundProgress(update.step, self.settings.steps, {role: metrics.of_role(role) for role in Role})
            )


class _Loaded:
    """Both learners' current adapters in the engine, under names used for this step only."""

    def __init__(
        self, engine: Engine, learners: dict[Role, RoleLearner], version: int, step: int, folder: Path
    ) -> None:
        self._engine, self._learners, self._folder = engine, learners, folder
        self._names = {role: AdapterName(role=role, version=version, step=step) for role in Role}

    def __enter__(self) -> dict[Role, Player]:
        for role, name in self._names.items():
            directory = self._folder / str(name)
            shutil.rmtree(directory, ignore_errors=True)
            self._learners[role].export(name, directory)
            self._engine.load_adapter(str(name), directory)
        return {role: ModelPlayer(str(name)) for role, name in self._names.items()}

    def __exit__(self, *_: object) -> None:
        for name in map(str, self._names.values()):
            if name in self._engine.loaded_adapters():
                self._engine.unload_adapter(name)
            shutil.rmtree(self._folder / name, ignore_errors=True)


def cotrain(
    settings: TrainingSettings,
    engine: Engine,
    scenario: Scenario,
    contexts: Callable[[int], Context],
    start: dict[Role, Path | None],
    version: int,
    output: Path,
    base: BaseModelRef,
    progress: Callable[[RoundProgress], None],
) -> CotrainResult:
    """Co-train both roles for ``settings.steps`` steps and export ``agent@version`` and ``counterpart@version``.

    ``output`` receives one folder per adapter and each learner's own working folder. Raises TrainingHalted,
    RolloutFailed, ValueError (settings that do not fit together, a base model that is not what it says).
    """
    return Cotraining(settings, engine, scenario, contexts, start, version, output, base, progress).run()
