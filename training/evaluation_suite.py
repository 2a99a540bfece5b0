"""The whole examination of one adapter: what it scores, beside everything that makes the score readable.

* **Counterparts by split.** Ordinary scripted families make the average. Adversaries, the fixed enterprise policy,
  endpoints and models stand apart from it: an average over them would depend on how many were written.
* **Baselines, on the same conversations.** The warm start (the base model without an adapter) and a policy that
  accepts everything.
* **Static-counterpart mismatch.** Success against the training partner minus success against held-out counterparts,
  paired by scenario. Some of it is only that one set is easier, so the warm start's own mismatch stands beside it.
* **The frozen warm start as counterpart.** A co-trained partner may simply have grown softer; this one has not.
* **Swapped chairs.** Each adapter in its own chair and the other's: what it learned for one should not work as
  well in the other.

Everything is played once; a report is plain data. Left out on purpose: the verdict (``pipelines.gate``).

Run: ``sparring evaluate``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from negotiation.generation import BASE, Engine
from negotiation.roles import Role
from negotiation.scenario import Scenario
from training.accept_everything import accept_everything
from training.counterparts import Negotiator, Split, negotiators
from training.evaluation import EvaluationResult, as_player, evaluate
from training.evaluation_report import (
    ACCEPT_EVERYTHING,
    ENDPOINT,
    FROZEN_WARM_START,
    JUDGED,
    SCHEMA_VERSION,
    TRAINING_PARTNER,
    WARM_START,
    SuiteReport,
    mismatch,
    paired_figures,
    policy_figures,
)
from training.joint_rollout import ModelPlayer, Player, ScriptedPlayer

DEFAULT_SPLITS: tuple[Split, ...] = ("held_out", "enterprise", "adversary")
APART: frozenset[Split] = frozenset({"enterprise", "adversary"})
"""Splits that never enter an average."""
HELD_OUT: Split = "held_out"


@dataclass(frozen=True)
class _Match:
    """A policy to be played against a group."""

    policy: str
    player: Player
    role: Role
    group: str
    opponents: tuple[Player, ...]


def run_suite(
    engine: Engine,
    scenario: Scenario,
    role: Role,
    adapter: str,
    *,
    counterpart_adapter: str | None = None,
    training_partners: Sequence[Negotiator | Player],
    seeds: Sequence[int],
    splits: Sequence[Split] = DEFAULT_SPLITS,
    endpoints: Sequence[Negotiator] = (),
    confidence: float = 0.95,
    max_message_tokens: int = 40,
    batch: int = 256,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> SuiteReport:
    """Play the whole examination of ``adapter`` in the chair of ``role``.

    ``counterpart_adapter`` is the other role's adapter, for the swap. ``training_partners`` are whom the
    adapter was trained with. All adapters must be loaded. Raises ValueError for no seeds, no partners or no split
    with anybody in it; AdapterNotLoaded.
    """
    groups, absent = _groups(scenario, role, splits, training_partners, endpoints)
    judged = ModelPlayer(adapter)
    policies: dict[str, Player] = {
        JUDGED: judged,
        WARM_START: ModelPlayer(BASE),
        ACCEPT_EVERYTHING: ScriptedPlayer(accept_everything(scenario.name, role)),
    }
    matches = [
        _Match(policy, player, role, group, opponents)
        for policy, player in policies.items()
        for group, opponents in groups.items()
    ]
    chairs = _chairs(role, adapter, counterpart_adapter)
    for name, (player, chair) in chairs.items():
        opponents = tuple(map(as_player, negotiators(scenario.name, chair.other, HELD_OUT)))
        matches.append(_Match(name, player, chair, HELD_OUT, opponents))
    results = _play_all(engine, scenario, matches, seeds, max_message_tokens, batch, progress)
    averaged = tuple(split for split in dict.fromkeys(splits) if split in groups and split not in APART)
    played = {policy: {group: results[policy, group] for group in groups} for policy in policies}
    own = played[JUDGED]
    return SuiteReport(
        schema_version=SCHEMA_VERSION,
        scenario=scenario.name,
        role=role,
        adapter=adapter,
        counterpart_adapter=counterpart_adapter,
        training_partners=tuple(player.name for player in groups[TRAINING_PARTNER]),
        seeds=tuple(seeds),
        confidence=confidence,
        averaged_over=averaged,
        absent_splits=absent,
        policies={policy: policy_figures(of, averaged, confidence) for policy, of in played.items()},
        chairs={
            name: policy_figures({HELD_OUT: results[name, HELD_OUT]}, (HELD_OUT,), confidence) for name in chairs
        },
        mismatches={
            policy: mismatch(of[TRAINING_PARTNER], of.get(HELD_OUT), confidence) for policy, of in played.items()
        },
        mismatch_by_partner={
            name: mismatch(result, own.get(HELD_OUT), confidence)
            for name, result in own[TRAINING_PARTNER].by_opponent().items()
        },
        gains={group: paired_figures(result, played[WARM_START][group], confidence) for group, result in own.items()},
    )


def _groups(
    scenario: Scenario,
    role: Role,
    splits: Sequence[Split],
    training_partners: Sequence[Negotiator | Player],
    endpoints: Sequence[Negotiator],
) -> tuple[dict[str, tuple[Player, ...]], tuple[str, ...]]:
    """Whom the judged role meets, by group, and the splits that have nobody for the other chair."""
    if not training_partners:
        raise ValueError("no training partners: name whom the adapter was trained with, or ModelPlayer(BASE)")
    groups: dict[str, tuple[Player, ...]] = {}
    absent = []
    for split in dict.fromkeys(splits):
        try:
            groups[split] = _players(negotiators(scenario.name, role.other, split))
        except ValueError:
            absent.append(split)
    if not groups:
        raise ValueError(f"none of the splits {list(splits)} has counterparts for the {role} in {scenario.name}")
    groups[TRAINING_PARTNER] = _players(training_partners)
    groups[FROZEN_WARM_START] = (ModelPlayer(BASE),)
    if endpoints:
        groups[ENDPOINT] = _players(endpoints)
    return groups, tuple(absent)


def _players(opponents: Iterable[Negotiator | Player]) -> tuple[Player, ...]:
    return tuple(as_player(opponent) for opponent in opponents)


def _chairs(role: Role, adapter: str, counterpart_adapter: str | None) -> dict[str, tuple[Player, Role]]:
    """Each adapter in its own chair and in the other's."""
    owners = {adapter: role}
    if counterpart_adapter is not None:
        owners[counterpart_adapter] = role.other
    return {
        f"{name} as {chair}": (ModelPlayer(name), chair) for name, own in owners.items() for chair in (own, own.other)
    }


def _play_all(
    engine: Engine,
    scenario: Scenario,
    matches: Sequence[_Match],
    seeds: Sequence[int],
    max_message_tokens: int,
    batch: int,
    progress: Callable[[int, int], None],
) -> dict[tuple[str, str], EvaluationResult]:
    """Results by policy and group. A player that has played a group already is not asked to play it again."""
    total = sum(len(match.opponents) for match in matches) * len(seeds)
    done = 0
    played: list[tuple[_Match, EvaluationResult]] = []
    results: dict[tuple[str, str], EvaluationResult] = {}
    for match in matches:
        same = next((r for m, r in played if _same_conversations(m, match)), None)
        if same is None:
            same = evaluate(
                engine,
                scenario,
                match.player,
                match.role,
                match.opponents,
                seeds,
                max_message_tokens=max_message_tokens,
                batch=batch,
                progress=lambda now, of, before=done: progress(before + now, total),  # type: ignore[misc]
            )
            played.append((match, same))
        results[match.policy, match.group] = same
        done += len(match.opponents) * len(seeds)
        progress(done, total)
    return results


def _same_conversations(one: _Match, other: _Match) -> bool:
    return (one.player, one.role, one.opponents) == (other.player, other.role, other.opponents)
