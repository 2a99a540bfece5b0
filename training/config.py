"""Settings of co-training and evaluation, validated once at the front door and passed down explicitly."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from negotiation.roles import Role


class LearnerSettings(BaseModel):
    """One role's update: GRPO (arXiv 2402.03300) with the token-level normalisation of DAPO (arXiv 2503.14476)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(
        4e-3, gt=0, le=1, description="Learning rate of AdamW at the first step, falling to 0 at the last."
    )
    kl_coefficient: float = Field(
        0.02, ge=0, description="Weight of the KL to the warm-started base model (the adapter switched off); 0: none."
    )
    clip_range: float = Field(0.2, gt=0, lt=1, description="PPO clip of the importance ratio.")
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


class TrainingSettings(BaseModel):
    """One co-training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    micro_batch: int = Field(
        8, ge=0, description="Dialogues per forward pass of an update, a bound on memory; 0: the whole step."
    )
    threads: int = Field(2, ge=1, description="Torch CPU threads.")
    adapter: AdapterSettings = AdapterSettings()
    agent: LearnerSettings = LearnerSettings()
    counterpart: LearnerSettings = LearnerSettings(learning_rate=2e-3)

    @property
    def dialogues_per_step(self) -> int:
        return self.scenarios_per_step * self.group_size

    def learner(self, role: Role) -> LearnerSettings:
        return self.agent if role is Role.AGENT else self.counterpart
