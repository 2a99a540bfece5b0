"""Counts a step's dialogues. Sums only, so that the processes of one run can add up what each of them played."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from negotiation.roles import Role
from training.joint_rollout import Dialogue, Rollout
from training.learner import Group
from training.records import StepMetrics


def tally(dialogues: Mapping[Group, Sequence[Dialogue]], rollout: Rollout) -> Counter[str]:
    """Sums over the dialogues that each learning role has views of, and over the whole rollout."""
    sums: Counter[str] = Counter()
    for (role, _), played in dialogues.items():
        for dialogue in played:
            outcome = dialogue.outcome
            sums[f"count/{role}"] += 1
            sums[f"success/{role}"] += outcome.success
            sums[f"agreement/{role}"] += outcome.agreed
            sums[f"reward/{role}"] += outcome.rewards[role]  # type: ignore[assignment]
            if role is Role.AGENT:
                partner = dialogue.players[role.other].removesuffix("-strange")
                sums[f"met/{partner}"] += 1
                sums[f"won/{partner}"] += outcome.success
    for dialogue in rollout.dialogues:
        for role, transcript in dialogue.transcripts.items():
            sums[f"sampled/{role}"] += sum(transcript.sampled)
        if len(dialogue.transcripts) == len(Role):
            sums["joint"] += 1
            sums["joint reward"] += sum(dialogue.outcome.rewards.values())  # type: ignore[assignment]
        sums["overflowed"] += dialogue.overflowed
    sums["dialogues"] = len(rollout.dialogues)
    sums["dropped"] = rollout.dropped
    return sums


def total(parts: Iterable[Mapping[str, float]]) -> Counter[str]:
    """The parts of all processes together."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(part)
    return sums


def step_metrics(
    step: int, sums: Mapping[str, float], roles: Sequence[Role], seconds: float, validation: Sequence[bool]
) -> StepMetrics:
    """The record of a step, counted from 1. ``sums`` is a Counter: what did not occur is 0.

    ``validation``: success of each talk with a validation counterpart, empty in a step without them.
    """

    def mean(name: str, role: Role) -> float:
        return sums[f"{name}/{role}"] / sums[f"count/{role}"]

    partners = [name.removeprefix("met/") for name in sums if name.startswith("met/")]
    return StepMetrics(
        step=step,
        success={role: mean("success", role) for role in roles},
        agreement={role: mean("agreement", role) for role in roles},
        reward={role: mean("reward", role) for role in roles},
        joint_reward=sums["joint reward"] / sums["joint"] if sums["joint"] else math.nan,
        tokens_sampled={role: int(sums[f"sampled/{role}"]) for role in Role},
        dialogues=int(sums["dialogues"]),
        dropped=int(sums["dropped"]),
        overflowed=int(sums["overflowed"]),
        rollout_seconds=seconds,
        success_against={name: sums[f"won/{name}"] / sums[f"met/{name}"] for name in sorted(partners)},
        validation_success=sum(validation) / len(validation) if validation else None,
        validation_talks=len(validation),
    )
