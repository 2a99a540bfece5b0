"""Settings of co-training and evaluation, validated once at the front door and passed down explicitly."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, model_validator

from negotiation.roles import Role
from training.methods import Method


class LearnerSettings(BaseModel):
    """One role's update: GRPO (arXiv 2402.03300) with the token-level normalisation of DAPO (arXiv 2503.14476)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(
        4e-3, gt=0, le=1, description="Learning rate of AdamW at the first step, falling to 0 at the last."
    )
    kl_coefficient: float = Field(
        0.02, ge=0, description="Weight of the KL to the warm-started base model (the adapter switched off); 0: none."
    )
    clip_range: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="PPO clip of the importance ratio between the trainer and the engine that sampled.",
    )
    importance_cap: float = Field(
        2.0,
        gt=1,
        description="Most that one token's importance ratio may count where the clip leaves it open (truncation).",
    )
    max_grad_norm: float = Field(0.5, gt=0, description="Gradient norm above which gradients are scaled down.")


class AdapterSettings(BaseModel):
    """Shape of the LoRA adapters (arXiv 2106.09685)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(16, ge=1, le=256, description="LoRA rank.")
    alpha: int = Field(32, ge=1, description="LoRA scale; the update is scaled by alpha / rank.")
    target_modules: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="Names of the linear layers that get an adapter.",
    )


class HealthSettings(BaseModel):
    """Limits that a healthy run stays within; each is measured against the run's own first steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["stop", "warn"] = Field("stop", description="What a passed limit does to the run.")
    window: int = Field(4, ge=1, description="Steps averaged on both sides of every comparison.")
    max_language_drift: float = Field(
        1.5, gt=0, description="Rise of own tokens' negative log-likelihood under the frozen base, nats per token."
    )
    max_length_growth: float = Field(
        3.0, gt=1, description="Own tokens per dialogue, as a multiple of the first steps'."
    )
    hacked_agreement_gain: float = Field(
        0.2, gt=0, description="Always-agree: gain in agreement that is suspect when own reward falls."
    )
    hacked_reward_loss: float = Field(
        0.1, gt=0, description="Always-agree: the fall in own reward that goes with it."
    )
    collusion_reward_gain: float = Field(
        0.1,
        gt=0,
        description="Collusion: gain in the roles' joint reward that is suspect when validation success falls.",
    )
    collusion_success_loss: float = Field(
        0.15, gt=0, description="Collusion: the fall in success against validation counterparts that goes with it."
    )


class TrainingSettings(BaseModel):
    """One training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method = Field(Method.BILATERAL, description="Who learns, and against whom.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the learners run.")
    rollout_urls: tuple[HttpUrl, ...] = Field(
        (), description="vLLM servers that play the rollouts; none: this process does."
    )
    seed: int = Field(0, ge=0, description="Seed of scenario order, sampling and adapters.")
    steps: int = Field(24, ge=1, description="Update steps of each role.")
    scenarios_per_step: int = Field(12, ge=1, description="Scenario groups in a step.")
    group_size: int = Field(8, ge=2, description="Dialogues per scenario; the advantage is normalised within.")
    joint_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of groups in which the two learning roles meet; else each meets scripted players.",
    )
    league_every: int = Field(
        0, ge=0, description="Steps between frozen copies of the counterpart that join the agent's partners; 0: none."
    )
    league_size: int = Field(2, ge=1, le=16, description="Frozen copies kept; the oldest leaves.")
    league_power: float = Field(
        2.0, ge=0, description="How strongly partners are drawn by how badly the agent does against them; 0: evenly."
    )
    counterpart_every: int = Field(
        1, ge=1, description="The counterpart learns in every k-th step only: a slower counterpart."
    )
    advantage: Literal["group", "running"] = Field(
        "group",
        description="Baseline of the advantage: the scenario's group, or a running mean of the role's rewards.",
    )
    per_turn_credit: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Discount of the advantage per own turn before the last; 1: the same for all turns.",
    )
    strange_share: float = Field(
        0.75,
        ge=0,
        le=1,
        description="Share of scripted players who speak in invented words: content is learned then, not phrases.",
    )
    max_message_tokens: int = Field(40, ge=4, description="Longest message a model may sample, in tokens.")
    max_logprob_gap: float = Field(
        0.05, gt=0, description="Mean |sampler - trainer| log-probability per token above which the run stops."
    )
    max_failed_share: float = Field(
        0.1, ge=0, le=1, description="Share of dropped dialogues in a step above which the run stops."
    )
    validation_every: int = Field(
        6, ge=0, description="Steps between plays against the validation counterparts, to see collusion; 0: never."
    )
    validation_scenarios: int = Field(24, ge=1, description="Scenarios of one such play.")
    checkpoint_every: int = Field(
        1, ge=1, description="Steps between checkpoints that an interrupted run goes on from."
    )
    micro_batch: int = Field(
        8, ge=0, description="Dialogues per forward pass of an update, a bound on memory; 0: the whole step."
    )
    health: HealthSettings = HealthSettings()
    threads: int = Field(2, ge=1, description="Torch CPU threads.")
    adapter: AdapterSettings = AdapterSettings()
    agent: LearnerSettings = LearnerSettings()
    counterpart: LearnerSettings = LearnerSettings(learning_rate=2e-3)

    @property
    def dialogues_per_step(self) -> int:
        return self.scenarios_per_step * self.group_size

    def learner(self, role: Role) -> LearnerSettings:
        return self.agent if role is Role.AGENT else self.counterpart

    @model_validator(mode="after")
    def _fits(self) -> TrainingSettings:
        for role in Role:
            learner = self.learner(role)
            if learner.importance_cap <= 1 + learner.clip_range:
                raise ValueError(
                    f"{role}.importance_cap is {learner.importance_cap}, must be over 1 + clip_range "
                    f"({1 + learner.clip_range}): raise it or lower clip_range"
                )
        return self
