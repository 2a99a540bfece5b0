"""One role's training view of a shared dialogue.

The prompt is everything before the role's first own token (its own system prompt and, where the other side
spoke first, that message); the completion is the rest. The mask is 1 on tokens that this role sampled: the
other side's words, the template's marks and a synthetic end of turn are context, not actions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from negotiation.roles import Role
from training.joint_rollout import Dialogue


@dataclass(frozen=True)
class PooledAdvantage:
    """An advantage that was not made from the role's own rewards alone: the shared-advantage ablation only."""

    value: float | None


@dataclass(frozen=True)
class TrainingView:
    """Token ids of length P (prompt) and C (completion); ``env_mask`` and ``logprobs`` have length C.

    ``reward`` is None where the role never spoke: there is no action to credit, so it is left out of the group.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    env_mask: list[int]
    logprobs: list[float]
    reward: float | None
    pooled_advantage: PooledAdvantage | None = None

    def with_advantage(self, advantage: PooledAdvantage) -> TrainingView:
        return replace(self, pooled_advantage=advantage)


def training_view(dialogue: Dialogue, role: Role) -> TrainingView:
    """The view of ``role``. Raises KeyError if no model played it."""
    transcript = dialogue.transcripts[role]
    if not any(transcript.sampled):
        end = transcript.chat.end_of_turn_id
        ids = transcript.ids or transcript.chat.opening(transcript.system_prompt)
        return TrainingView(prompt_ids=list(ids), completion_ids=[end], env_mask=[0], logprobs=[0.0], reward=None)
    first = transcript.sampled.index(1)
    last = len(transcript.sampled) - transcript.sampled[::-1].index(1)
    return TrainingView(
        prompt_ids=transcript.ids[:first],
        completion_ids=transcript.ids[first:last],
        env_mask=transcript.sampled[first:last],
        logprobs=transcript.logprobs[first:last],
        reward=dialogue.outcome.rewards[role],
    )
