"""Judging and moving champions by hand, on the same terms as a round does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from pipelines.calibration import held_out_seeds
from pipelines.gate import GateDecision, Interval, decide
from sparring.compose import open_engine, open_registry
from sparring.errors import MisuseError, RefusedError
from sparring.models import resolve_base_model
from sparring.settings import Settings
from sparring.versions import list_versions, previous_champion
from training.counterparts import negotiators

if TYPE_CHECKING:
    from negotiation.generation import Engine
    from pipelines.registry import MlflowRegistry
    from training.evaluation import EvaluationResult

Figures = dict[str, Interval]


@dataclass(frozen=True)
class Judgement:
    """A version compared with the champion of its role."""

    candidate: str
    champion: str
    decision: GateDecision


@dataclass(frozen=True)
class EvaluationReport:
    """How one version did. ``overall`` and ``by_opponent``: metric to mean and interval."""

    name: str
    scenario: str
    conversations: int
    scenarios: int
    overall: Figures
    by_opponent: dict[str, Figures]


def evaluate_version(settings: Settings, role: Role, version: int | None) -> EvaluationReport:
    """Play a version (default: the champion) against held-out counterparts."""
    from pipelines.registry import CHAMPION

    model = resolve_base_model(settings.base_model)
    registry = open_registry(settings, model)
    number = version if version is not None else registry.version(role, CHAMPION)
    assert number is not None, "a registry that is open has champions"
    name, directory = _adapter(registry, role, number)
    engine = open_engine(settings, model, training=True)
    try:
        result = _play(settings, engine, role, name, directory, held_out_seeds(number, _count(settings)))
    finally:
        engine.close()
    episodes = result.episodes
    opponents = sorted({episode.opponent for episode in episodes})
    gate = settings.pipelines.gate.model_copy(update={"min_scenarios": 2})
    return EvaluationReport(
        name=name,
        scenario=settings.pipelines.scenario,
        conversations=len(episodes),
        scenarios=_count(settings),
        overall=dict(decide(episodes, episodes, gate).candidate),
        by_opponent={
            opponent: dict(decide(own, own, gate).candidate)
            for opponent in opponents
            for own in [[episode for episode in episodes if episode.opponent == opponent]]
        },
    )


def judge_version(settings: Settings, role: Role, version: int | None) -> Judgement:
    """Compare a version (default: the newest candidate) with the champion, paired, on unseen scenarios."""
    model = resolve_base_model(settings.base_model)
    return _judge(settings, open_registry(settings, model), role, version)


def promote_version(settings: Settings, role: Role, version: int | None) -> Judgement:
    """Gate a version and make it champion. Raises RefusedError with the gate's reasons."""
    from negotiation.adapter import AdapterName
    from pipelines.registry import RegistryError

    registry = open_registry(settings, resolve_base_model(settings.base_model))
    judged = _judge(settings, registry, role, version)
    if not judged.decision.promote:
        raise RefusedError(f"{judged.candidate} stays a candidate. {' '.join(judged.decision.reasons)}")
    candidate, champion = AdapterName.parse(judged.candidate), AdapterName.parse(judged.champion)
    try:
        registry.promote(role, candidate.version, expected=champion.version)
    except RegistryError as error:
        raise RefusedError(str(error)) from error
    return judged


def roll_back(registry: MlflowRegistry, role: Role, to: int | None) -> tuple[int, int]:
    """Make an earlier version champion; returns the versions before and after."""
    from pipelines.registry import CHAMPION, PROMOTED_TAG, RegistryError, model_name

    current = registry.version(role, CHAMPION)
    assert current is not None, "a registry that is open has champions"
    target = to if to is not None else previous_champion(list_versions(registry, role), current).version
    if target == current:
        raise MisuseError(f"{role}@{current} is champion already: name an earlier version with --to")
    try:
        registry.promote(role, target, expected=current)
    except RegistryError as error:
        raise RefusedError(str(error)) from error
    # What was rolled back from is nothing that a later roll-back should lead to.
    registry.client.set_model_version_tag(model_name(role), str(current), PROMOTED_TAG, "false")
    return current, target


def _judge(settings: Settings, registry: MlflowRegistry, role: Role, version: int | None) -> Judgement:
    from pipelines.registry import CHALLENGER, CHAMPION

    champion = registry.version(role, CHAMPION)
    assert champion is not None, "a registry that is open has champions"
    candidate = version if version is not None else registry.version(role, CHALLENGER)
    if candidate is None:
        raise RefusedError(f"there is no candidate of the {role} yet: run `sparring train`, or name a --version")
    if candidate == champion:
        raise RefusedError(f"{role}@{candidate} is champion already: there is nothing to judge")
    seeds = held_out_seeds(candidate, _count(settings))
    engine = open_engine(settings, resolve_base_model(settings.base_model), training=True)
    try:
        pair = [_adapter(registry, role, number) for number in (candidate, champion)]
        played = [_play(settings, engine, role, name, directory, seeds) for name, directory in pair]
    finally:
        engine.close()
    gate = settings.pipelines.gate_of(role)
    decision = decide(played[0].episodes, played[1].episodes, gate)
    return Judgement(f"{role}@{candidate}", f"{role}@{champion}", decision)


def _count(settings: Settings) -> int:
    return settings.pipelines.evaluation_scenarios


def _adapter(registry: MlflowRegistry, role: Role, version: int) -> tuple[str, Path]:
    from pipelines.registry import RegistryError

    try:
        adapter = registry.adapter(role, version)
    except RegistryError as error:
        raise MisuseError(f"{error}. See `sparring adapters`") from error
    return adapter.name, adapter.fetch()


def _play(
    settings: Settings, engine: Engine, role: Role, name: str, directory: Path, seeds: Sequence[int]
) -> EvaluationResult:
    from training.evaluation import evaluate

    scenario = scenario_named(settings.pipelines.scenario)
    engine.load_adapter(name, directory)
    return evaluate(engine, scenario, name, role, negotiators(scenario.name, role.other, "held_out"), seeds)
