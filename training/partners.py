"""The partners who do not learn: scripted training families, frozen copies of the counterpart, the frozen start.

Frozen counterparts may also be given: those of earlier rounds, or warm starts of other seeds. The agent's partners
may be drawn by how badly it does against them, from a league of scripted families and of the counterpart's own
earlier selves (prioritised fictitious self-play; Vinyals et al. 2019). Validation counterparts, whom nobody trains
against, are here too: they show whether a run goes wrong, and judge nothing.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from negotiation.adapter import MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest
from negotiation.generation import BASE, Engine, Sampling
from negotiation.roles import Role
from negotiation.scenario import Context, Scenario
from training.artifacts import file_sha256
from training.config import TrainingSettings
from training.counterparts import Negotiator, negotiators
from training.counterparts.pool import League, PoolMember
from training.joint_rollout import ModelPlayer, Player, ScriptedPlayer, Table, play
from training.methods import MethodPlan
from training.wording import StrangeNegotiator


class Partners:
    """Partners of one run. ``adapters``: engine name to folder of those that a model plays."""

    def __init__(
        self,
        settings: TrainingSettings,
        plan: MethodPlan,
        scenario: str,
        counterpart: Path | None,
        output: Path,
        frozen: Sequence[Path] = (),
    ) -> None:
        self.settings, self.plan, self.scenario = settings, plan, scenario
        self.adapters: dict[str, Path] = {}
        self._copies: list[str] = []
        self._folder = output / "league"
        self._only: str | None = None
        if plan.partner == "frozen":
            self._only = BASE
            if counterpart is not None:
                self._only = _name(counterpart)
                self.adapters[self._only] = counterpart
        if frozen and plan.partner != "mixed":
            raise ValueError(
                f"{settings.method} has no pool for frozen partners to join: give none, or use bilateral"
            )
        self._league: League | None = None
        if (settings.league_every or frozen) and plan.partner == "mixed":
            self.adapters |= {_name(folder): folder for folder in frozen}
            scripted = negotiators(scenario, Role.COUNTERPART, "train")
            members = [PoolMember(n.name, n.family, settings.seed, "scripted") for n in scripted]
            members += [PoolMember(name, "frozen", settings.seed, "adapter") for name in self.adapters]
            self._league = League(members, power=settings.league_power)

    def identity(self) -> object:
        """What tells these partners from others, for the run's fingerprint."""
        weights = {name: file_sha256(folder / WEIGHTS_FILE) for name, folder in self.adapters.items()}
        return {"only": self._only, "adapters": weights}

    def draw(self, role: Role, rng: random.Random) -> Player:
        """Somebody for the chair opposite ``role``."""
        if self._only is not None:
            return ModelPlayer(self._only)
        scripted = {n.name: n for n in negotiators(self.scenario, role.other, "train")}
        if role is not Role.AGENT or self._league is None:
            return self._scripted(rng.choice(list(scripted.values())), rng)
        name = self._league.sample(rng, 1)[0]
        return ModelPlayer(name) if name in self.adapters else self._scripted(scripted[name], rng)

    def _scripted(self, partner: Negotiator, rng: random.Random) -> Player:
        strange = rng.random() < self.settings.strange_share
        return ScriptedPlayer(StrangeNegotiator(partner) if strange else partner)

    def record(self, success_against: Mapping[str, float]) -> None:
        """How the agent did against each partner in a step."""
        if self._league is not None:
            for name in self._league.names:
                if name in success_against:
                    self._league.record(name, success_against[name])

    def after_step(self, step: int, counterpart: Path | None, *, write: bool = True) -> None:
        """Every so many steps the counterpart as it was in this one joins the league; the oldest copy leaves.

        Of several processes that share the output folder one writes; the others must not load the copy before it has.
        """
        every = self.settings.league_every
        if self._league is None or counterpart is None or not every or (step + 1) % every:
            return
        copy = self._folder / counterpart.name
        if write:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(counterpart, copy)
        self.adapters[copy.name] = copy
        self._copies.append(copy.name)
        self._league.add(PoolMember(copy.name, "league", self.settings.seed, "adapter"))
        while len(self._copies) > self.settings.league_size:
            oldest = self._copies.pop(0)
            self._league.remove(oldest)
            # Its files stay until the run ends: the checkpoint before this step still names them.
            self.adapters.pop(oldest)

    def prune(self) -> None:
        """Remove the copies that left the league. For the end of a run, when no checkpoint is gone back to."""
        for folder in self._folder.glob("*"):
            if folder.name not in self._copies:
                shutil.rmtree(folder, ignore_errors=True)

    def validate(
        self,
        engine: Engine,
        scenario: Scenario,
        step: int,
        agent: Player,
        contexts: Callable[[int], Context],
        sampling: Sampling,
    ) -> list[bool]:
        """The agent's success in each talk with a validation counterpart; empty in a step without validation."""
        if not self.settings.validation_every or step % self.settings.validation_every:
            return []
        # The same scenarios every time, and none that the run trains on.
        first = self.settings.steps * self.settings.scenarios_per_step
        tables = [
            Table(contexts(first + index), {Role.AGENT: agent, Role.COUNTERPART: ScriptedPlayer(partner)}, index)
            for index in range(self.settings.validation_scenarios)
            for partner in negotiators(scenario.name, Role.COUNTERPART, "validation")
        ]
        return [dialogue.outcome.success for dialogue in play(engine, scenario, tables, sampling).dialogues]

    def state(self) -> dict[str, Any]:
        return {"copies": self._copies, "league": None if self._league is None else self._league.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if self._league is not None:
            self._copies = list(state["copies"])
            self.adapters |= {name: self._folder / name for name in self._copies}
            self._league.load_state_dict(state["league"])


def _name(adapter: Path) -> str:
    return AdapterManifest.model_validate_json((adapter / MANIFEST_FILE).read_bytes()).name
