"""Settings of the pipeline. Passed in by whoever composes it; nothing here reads the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from negotiation.roles import Role


class GateSettings(BaseModel):
    """When a candidate may replace the champion, judged on paired differences against held-out counterparts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: Literal["success", "own_reward"] = Field(
        "success", description="What must improve: the share of successful conversations, or the role's own reward."
    )
    min_effect: float = Field(
        0.0, ge=0, lt=1, description="The interval's lower bound must be over this, in the metric's own unit."
    )
    confidence: float = Field(0.95, ge=0.8, lt=1, description="Two-sided confidence of every interval.")
    resamples: int = Field(5000, ge=200, le=100_000, description="Bootstrap resamples.")
    min_scenarios: int = Field(20, ge=2, description="Refuse to judge on fewer scenarios than this.")
    max_extra_blocked: float = Field(
        0.05,
        ge=0,
        description="Offers beyond authority per conversation that the candidate may make over the champion's.",
    )
    seed: int = Field(0, ge=0, description="Of the bootstrap; same rows and seed, same decision.")


class PipelineSettings(BaseModel):
    """Event log to promotion."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state_dir: Path = Field(Path("var"), description="Folder of all embedded state.")
    tracking_uri: str | None = Field(
        None,
        pattern=r"^(sqlite:///|https?://).+",
        description="MLflow server or database; by default sqlite in the state folder.",
    )
    scenario: str = Field("telesales", description="The scenario that rounds train and judge.")
    tenant: str = Field("default", min_length=1, max_length=64, description="Tenant of replayed conversations.")
    outcome_grace_seconds: float = Field(
        300, ge=0, description="How long a closed conversation waits for its outcome before it counts without one."
    )
    min_conversations: int = Field(200, ge=1, description="New finished conversations that start a round.")
    poll_seconds: float = Field(1.0, gt=0, le=60, description="Pause between looks at an idle event log.")
    live_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of training contexts from finished conversations; the rest are generated.",
    )
    max_live_contexts: int = Field(2000, ge=1, le=100_000, description="Newest conversations that a round draws on.")
    evaluation_scenarios: int = Field(
        160, ge=2, le=9999, description="Seeded scenarios on which candidate and champion are compared, per opponent."
    )
    report_episodes: int = Field(20, ge=0, le=500, description="Rows of the largest changes shown in the report.")
    gate: GateSettings = Field(default_factory=GateSettings, description="For the agent.")
    counterpart_gate: GateSettings = Field(
        default_factory=lambda: GateSettings(metric="own_reward"), description="For the counterpart."
    )

    def gate_of(self, role: Role) -> GateSettings:
        """The gate that judges a role's candidates."""
        return self.gate if role is Role.AGENT else self.counterpart_gate

    @property
    def event_log_path(self) -> Path:
        return self.state_dir / "events.db"

    @property
    def datasets_dir(self) -> Path:
        return self.state_dir / "datasets" / "conversations"

    @property
    def adapters_dir(self) -> Path:
        return self.state_dir / "adapters"

    @property
    def rounds_dir(self) -> Path:
        return self.state_dir / "rounds"

    @property
    def worker_status_path(self) -> Path:
        return self.state_dir / "worker-status.json"

    @property
    def resolved_tracking_uri(self) -> str:
        return self.tracking_uri or f"sqlite:///{(self.state_dir / 'mlflow.db').absolute()}"
