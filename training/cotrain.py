"""Co-training, the core loop: isolated bilateral reinforcement learning (IB-RL, arXiv 2608.06735) and its rivals.

Each step plays one joint rollout and updates every learning role, each from its own view alone. Who learns and whom
they meet is the method's (:mod:`training.methods`); who sits at which table is :mod:`training.seating`'s. The state
before a step is kept, so that a run that was killed goes on and ends with the very same adapters.

Left out on purpose: evaluation (:mod:`training.evaluation`) and any decision about what is served.

Run: ``sparring train --method bilateral``. On several processes: ``accelerate launch``, see docs/training.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from accelerate.utils import gather_object

from negotiation.adapter import AdapterName
from negotiation.generation import Engine, Sampling
from negotiation.roles import Role
from negotiation.scenario import Context, Scenario
from training.advantages import pooled
from training.artifacts import BaseModelRef
from training.checkpoint import Checkpoint, Checkpoints, fingerprint
from training.config import TrainingSettings
from training.health import health_problem
from training.joint_rollout import Dialogue, ModelPlayer, Player, Rollout, play
from training.learner import Group, RoleLearner, TrainingHalted
from training.metering import Stopwatch, peak_gpu_memory, peak_memory
from training.methods import plan_of
from training.partners import Partners
from training.records import (
    CotrainResult,
    Price,
    RoundProgress,
    StepMetrics,
    UpdateMetrics,
    dump_result,
    dump_steps,
    load_result,
    load_steps,
)
from training.rendezvous import Rendezvous
from training.seating import Seating, Seats
from training.step_adapters import exported, loaded
from training.tally import step_metrics, tally, total
from training.views import PooledAdvantage, TrainingView, training_view

logger = logging.getLogger(__name__)
RESULT_FILE = "result.json"
Dialogues = dict[Group, list[Dialogue]]


class Cotraining:
    """One run. ``contexts(index)`` gives the index-th training scenario; ``start`` the adapters to go on from.

    ``frozen`` are counterparts that never learn and are met along with the scripted ones.
    """

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
        frozen: Sequence[Path] = (),
    ) -> None:
        self.settings, self.engine, self.scenario = settings, engine, scenario
        self.version, self.output, self.progress = version, output, progress
        self.plan = plan_of(settings.method)
        self.steps: list[StepMetrics] = []
        self.stopwatch = Stopwatch()
        torch.set_num_threads(settings.threads)
        self._sampling = Sampling(max_tokens=settings.max_message_tokens, temperature=1.0)
        self._seating = Seating(settings, self.plan, contexts)
        self._partners = Partners(settings, self.plan, scenario.name, start.get(Role.COUNTERPART), output, frozen)
        self._rendezvous: Rendezvous[Sequence[Group], list[TrainingView]] = Rendezvous(
            tuple(roles[0] for roles in self.plan.adapters), self._joint_rollout
        )
        self.learners = {
            roles[0]: RoleLearner(
                roles[0],
                settings,
                base,
                start.get(roles[0]),
                output / "learners" / roles[0],
                meet=lambda _, groups, name=roles[0]: self._rendezvous.meet(name, groups),  # type: ignore[misc]
                report=self._on_update,
                plays=roles,
            )
            for roles in self.plan.adapters
        }
        self._accelerator = next(iter(self.learners.values())).trainer.accelerator
        starts = {role: learner.start_sha256 for role, learner in self.learners.items()}
        # Where rollouts are played is no part of what the run is: servers move.
        what = settings.model_dump(mode="json", exclude={"rollout_urls"})
        parts = {"settings": what, "scenario": scenario.name, "version": version}
        parts |= {"base": base.sha256, "start": starts, "partners": self._partners.identity()}
        self._checkpoints = Checkpoints(output / "checkpoints", fingerprint(parts))

    def run(self) -> CotrainResult:
        """Every step of all learners, then export; goes on from the checkpoint in ``output`` if there is one.

        Raises FileExistsError, CheckpointMismatch, TrainingHalted and RolloutFailed.
        """
        names = {role: AdapterName(role=role, version=self.version) for role in self.plan.learning}
        checkpoint = self._checkpoints.latest()
        # All processes must have looked before the first writes one.
        self._accelerator.wait_for_everyone()
        if checkpoint is None:
            for directory in (self.output / str(name) for name in names.values()):
                # Found out at the end, it would cost the whole run.
                if directory.exists():
                    raise FileExistsError(f"{directory} exists: adapter versions are immutable, choose a new version")
        elif (finished := self.output / RESULT_FILE).exists():
            return load_result(finished.read_text(encoding="utf-8"), self.output)
        else:
            self._restore(checkpoint)
        bases = {role: learner.base_sha256() for role, learner in self.learners.items()}
        self._rendezvous.run(
            {
                role: lambda learner=learner: learner.train(checkpoint and checkpoint.learner(learner.role))  # type: ignore[misc]
                for role, learner in self.learners.items()
            }
        )
        for role, learner in self.learners.items():
            if learner.base_sha256() != bases[role]:
                raise TrainingHalted(f"the base weights under the {role}'s adapter changed")
        return self._finish(names)

    def _joint_rollout(self, requests: dict[str, Sequence[Group]]) -> dict[str, list[TrainingView]]:
        """One step's dialogues, as the views that each learner asked for."""
        step = len(self.steps)
        self._save(step)
        asked = {name: self._groups(groups) for name, groups in requests.items()}
        if len({tuple(index for _, index in groups) for groups in asked.values()}) > 1:
            raise TrainingHalted("the learners asked for different scenarios: their datasets must have one order")
        indices = list(dict.fromkeys(index for groups in asked.values() for _, index in groups))
        began = self.stopwatch.seconds.get("rollouts", 0.0)
        with exported(self.learners, self.version, step, self._working_folder) as own:
            adapters = {directory.name: directory for directory in own.values()} | self._partners.adapters
            with loaded(self.engine, adapters):
                players: dict[Role, Player] = {
                    role: ModelPlayer(own[roles[0]].name) for roles in self.plan.adapters for role in roles
                }
                with self.stopwatch.phase("rollouts"):
                    dialogues, rollout = self._play(step, indices, players)
                with self.stopwatch.phase("validation"):
                    validation = self._partners.validate(
                        self.engine, self.scenario, step, players[Role.AGENT], self._seating.contexts, self._sampling
                    )
            writes = self._accelerator.is_main_process
            # The figures of the step are gathered before anybody goes on, and so after the copy is written.
            self._partners.after_step(step, own.get(Role.COUNTERPART), write=writes)
        seconds = self.stopwatch.seconds["rollouts"] - began
        self._record(step, dialogues, rollout, seconds, validation)
        return {
            name: [view for group in groups for view in self._views(group, dialogues)]
            for name, groups in asked.items()
        }

    def _groups(self, expanded: Sequence[Group]) -> list[Group]:
        """The trainer repeats every group for its dialogues; anything else would mix the groups up."""
        size = self.settings.group_size
        groups = list(expanded[::size])
        if list(expanded) != [group for group in groups for _ in range(size)]:
            raise TrainingHalted(f"scenarios must come in runs of group_size {size}, once expanded")
        return groups

    def _play(self, step: int, indices: Sequence[int], players: dict[Role, Player]) -> tuple[Dialogues, Rollout]:
        """All dialogues of the step at once; each learning role's are those of its own tables."""
        seated = self._seating.seats(step, indices, players, self._partners)
        slots: list[tuple[int, Seats]] = [(index, seats) for index, group in seated.items() for seats in group]
        tables = [table for _, seats in slots for table in seats.values()]
        rollout = play(self.engine, self.scenario, tables, self._sampling)
        dialogues: Dialogues = {(role, index): [] for role in self.plan.learning for index in indices}
        finished = iter(rollout.dialogues)
        for index, seats in slots:
            for roles in seats:
                dialogue = next(finished)
                for role in roles:
                    dialogues[role, index].append(dialogue)
        return dialogues, rollout

    def _views(self, group: Group, dialogues: Dialogues) -> list[TrainingView]:
        role, index = group
        views = [training_view(dialogue, role) for dialogue in dialogues[group]]
        if not self.plan.pooled_advantage:
            return views
        others = [training_view(dialogue, role.other).reward for dialogue in dialogues[role.other, index]]
        advantages = pooled([view.reward for view in views], others, self.settings.group_size)
        return [view.with_advantage(PooledAdvantage(value)) for view, value in zip(views, advantages, strict=True)]

    def _record(
        self, step: int, dialogues: Dialogues, rollout: Rollout, seconds: float, validation: Sequence[bool]
    ) -> None:
        sums = total(gather_object([tally(dialogues, rollout)]))
        metrics = step_metrics(step + 1, sums, self.plan.learning, seconds, validation)
        share = metrics.dropped / max(1, metrics.dialogues)
        if share > self.settings.max_failed_share:
            raise TrainingHalted(
                f"step {step + 1}: {share:.0%} of episodes were dropped, the limit is "
                f"{self.settings.max_failed_share:.0%}: the log has each reason"
            )
        self._partners.record(metrics.success_against)
        self.steps.append(metrics)

    def _on_update(self, learner: Role, update: UpdateMetrics) -> None:
        metrics = self.steps[update.step - 1]
        metrics.updates.update(dict.fromkeys(self.learners[learner].plays, update))
        if len(metrics.updates) < len(self.plan.learning):
            return
        rows = {role: metrics.of_role(role) for role in self.plan.learning}
        self.progress(RoundProgress(update.step, self.settings.steps, rows))
        problem = health_problem(self.steps, self.settings.health)
        if problem and self.settings.health.action == "stop":
            raise TrainingHalted(f"step {update.step}: {problem}")
        if problem:
            logger.warning("step %s: %s", update.step, problem)

    @property
    def _working_folder(self) -> Path:
        return self.output / "steps" / str(self._accelerator.process_index)

    def _save(self, step: int) -> None:
        """Keep what this step depends on; all learners are between two updates here."""
        if step % self.settings.checkpoint_every or not self._accelerator.is_main_process:
            return
        with self.stopwatch.phase("checkpoints"):
            state = {
                "steps": dump_steps(self.steps),
                "seconds": self.stopwatch.seconds,
                "partners": self._partners.state(),
                "learners": {role: learner.state() for role, learner in self.learners.items()},
            }
            self._checkpoints.write(step, state, {role: learner.save for role, learner in self.learners.items()})

    def _restore(self, checkpoint: Checkpoint) -> None:
        logger.info("going on after step %s, from %s", checkpoint.step, checkpoint.directory)
        self.steps = load_steps(checkpoint.state["steps"])
        self.stopwatch = Stopwatch(checkpoint.state["seconds"])
        self._partners.restore(checkpoint.state["partners"])
        for role, learner in self.learners.items():
            learner.restore(checkpoint.state["learners"][role])

    def _finish(self, names: dict[Role, AdapterName]) -> CotrainResult:
        """Export every learning role's adapter and write the result down."""
        owner = {role: self.learners[roles[0]] for roles in self.plan.adapters for role in roles}
        adapters = {role: self.output / str(name) for role, name in names.items()}
        updates = {f"update of {role}": learner.update_seconds for role, learner in self.learners.items()}
        result = CotrainResult(
            adapters=adapters,
            manifests={role: owner[role].publish(names[role], adapters[role]) for role in names},
            steps=self.steps,
            price=Price(
                tokens_sampled={role: sum(step.tokens_sampled[role] for step in self.steps) for role in Role},
                tokens_trained={role: learner.tokens_trained for role, learner in self.learners.items()},
                dialogues=sum(step.dialogues for step in self.steps),
                seconds={**self.stopwatch.seconds, **updates},
                peak_memory_bytes=peak_memory(),
                peak_gpu_memory_bytes=peak_gpu_memory(),
            ),
        )
        if self._accelerator.is_main_process:
            (self.output / RESULT_FILE).write_text(dump_result(result) + "\n", encoding="utf-8")
            self._partners.prune()
        return result


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
    frozen: Sequence[Path] = (),
) -> CotrainResult:
    """Train the method's roles for ``settings.steps`` steps and export ``agent@version`` and ``counterpart@version``.

    ``output`` receives one folder per adapter, each learner's own working folder and the checkpoints; the same call
    goes on with an interrupted run. ``frozen`` counterparts' adapters join the agent's partners. Raises
    TrainingHalted, RolloutFailed, CheckpointMismatch, FileExistsError, ValueError (settings that do not fit together,
    a base model or an adapter that is not what it says).
    """
    return Cotraining(settings, engine, scenario, contexts, start, version, output, base, progress, frozen).run()
