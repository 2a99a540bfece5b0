"""Judging and moving champions by hand, on the same terms as a round does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from pipelines.calibration import held_out_seeds
from pipelines.gate import GateDecision, decide
from sparring.compose import open_engine, open_registry
from sparring.errors import MisuseError, RefusedError
from sparring.models import resolve_base_model
from sparring.settings import Settings
from sparring.versions import list_versions, previous_champion
from training.counterparts import Negotiator, Split, negotiators

if TYPE_CHECKING:
    from negotiation.generation import Engine
    from pipelines.registry import MlflowRegistry
    from training.evaluation import EvaluationResult
    from training.evaluation_report import Figures, SuiteReport


@dataclass(frozen=True)
class Judgement:
    """A version compared with the champion of its role."""

    candidate: str
    champion: str
    decision: GateDecision


@dataclass(frozen=True)
class EvaluationReport:
    """How one version did against the counterparts asked for; the examination around it is in ``suite``.

    ``overall`` and ``by_opponent``: metric to mean and interval, None where no conversation has a value. ``overall``
    leaves out adversaries, the enterprise policy and endpoints, which ``conversations`` counts.
    """

    name: str
    scenario: str
    conversations: int
    scenarios: int
    overall: Figures
    by_opponent: dict[str, Figures]
    suite: SuiteReport


def evaluate_version(
    settings: Settings,
    role: Role,
    version: int | None,
    *,
    splits: Sequence[Split] | None = None,
    counterpart_version: int | None = None,
    endpoints: Sequence[Negotiator] = (),
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> EvaluationReport:
    """Examine a version (default: the champion) on scenarios that training never draws.

    ``splits`` None: held-out, enterprise and adversary, where there are any. ``counterpart_version`` None: the
    other role's version of the same number, which came out of the same round, if it is ready. Raises MisuseError for
    a split that has nobody, and for a version that is not there; RefusedError if conversations kept breaking.
    """
    from pipelines.registry import CHAMPION
    from training.evaluation_suite import DEFAULT_SPLITS, run_suite
    from training.joint_rollout import ModelPlayer, Player, RolloutFailed

    scenario = scenario_named(settings.pipelines.scenario)
    for split in splits or ():
        _require_members(scenario.name, role.other, split)
    model = resolve_base_model(settings.base_model)
    registry = open_registry(settings, model)
    number = version if version is not None else registry.version(role, CHAMPION)
    assert number is not None, "a registry that is open has champions"
    adapter, directory = _adapter(registry, role, number)
    loaded = {adapter: directory}
    partners: list[Negotiator | Player] = list(negotiators(scenario.name, role.other, "train"))
    counterpart = _counterpart(registry, role.other, number, counterpart_version)
    if counterpart is not None:
        loaded[counterpart[0]] = counterpart[1]
        partners.insert(0, ModelPlayer(counterpart[0]))
    engine = open_engine(settings, model, training=True)
    try:
        for name, path in loaded.items():
            engine.load_adapter(name, path)
        suite = run_suite(
            engine,
            scenario,
            role,
            adapter,
            counterpart_adapter=None if counterpart is None else counterpart[0],
            training_partners=partners,
            seeds=held_out_seeds(number, _count(settings)),
            splits=splits or DEFAULT_SPLITS,
            endpoints=endpoints,
            max_message_tokens=settings.training.max_message_tokens,
            progress=progress,
        )
    except RolloutFailed as error:
        raise RefusedError(str(error)) from error
    finally:
        engine.close()
    return _report(suite)


def _report(suite: SuiteReport) -> EvaluationReport:
    from training.evaluation_report import FROZEN_WARM_START, JUDGED, TRAINING_PARTNER

    judged = suite.policies[JUDGED]
    by_opponent: dict[str, Figures] = {}
    conversations = 0
    for group, figures in judged.groups.items():
        if group in (TRAINING_PARTNER, FROZEN_WARM_START):
            continue
        conversations += figures.conversations
        for name, own in figures.by_opponent.items():
            # Two splits may have a family of one name that plays differently.
            by_opponent[f"{name} ({group})" if name in by_opponent else name] = own
    return EvaluationReport(
        name=suite.adapter,
        scenario=suite.scenario,
        conversations=conversations,
        scenarios=len(suite.seeds),
        overall=judged.average,
        by_opponent=by_opponent,
        suite=suite,
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


def _counterpart(registry: MlflowRegistry, role: Role, number: int, version: int | None) -> tuple[str, Path] | None:
    """The other role's adapter by name, and its folder. None if no version was named and that number is not ready."""
    from pipelines.registry import RegistryError

    if version is not None:
        return _adapter(registry, role, version)
    try:
        adapter = registry.adapter(role, number)
    except RegistryError:
        return None
    return adapter.name, adapter.fetch()


def _require_members(scenario: str, role: Role, split: Split) -> None:
    try:
        negotiators(scenario, role, split)
    except ValueError as error:
        raise MisuseError(f"--against {split}: {error}; leave it out, or judge the other role") from error


def _play(
    settings: Settings, engine: Engine, role: Role, name: str, directory: Path, seeds: Sequence[int]
) -> EvaluationResult:
    from training.evaluation import evaluate

    scenario = scenario_named(settings.pipelines.scenario)
    engine.load_adapter(name, directory)
    opponents = negotiators(scenario.name, role.other, "held_out")
    tokens = settings.training.max_message_tokens
    return evaluate(engine, scenario, name, role, opponents, seeds, max_message_tokens=tokens)
