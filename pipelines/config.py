"""Settings of the pipeline. Passed in by whoever composes it; nothing here reads the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    field_validator,
    model_validator,
)

from negotiation.events import CONVERSATIONS_TOPIC
from negotiation.roles import Role

_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


class KafkaSettings(BaseModel):
    """A Kafka cluster that keeps the events in place of the embedded log."""

    # An error about these settings must not print the password among its inputs.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    bootstrap_servers: str = Field(
        min_length=1, description="Brokers to begin with: host:port, several separated by commas."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How to connect. PLAINTEXT and SASL_PLAINTEXT do not encrypt."
    )
    ssl_cafile: Path | None = Field(
        None, description="Certificates (PEM) that the brokers' are checked against; by default the system's."
    )
    ssl_certfile: Path | None = Field(None, description="Our certificate (PEM), where brokers ask for one.")
    ssl_keyfile: Path | None = Field(None, description="The key of that certificate (PEM, without a password).")
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="How to log in with user name and password."
    )
    sasl_username: str | None = Field(None, min_length=1, description="User name.")
    sasl_password: SecretStr | None = Field(
        None, description="Password; better in SPARRING_PIPELINES__KAFKA__SASL_PASSWORD than in a file."
    )
    delivery_timeout_seconds: float = Field(
        15.0, ge=1, le=600, description="Longest wait for brokers to acknowledge events or to answer."
    )
    partitions: int = Field(6, ge=1, le=1000, description="Partitions of the conversations topic.")
    replication_factor: int = Field(
        3, ge=1, le=9, description="Brokers that hold each record; 1 survives no failure."
    )
    retention_days: float = Field(
        30, gt=0, le=3650, description="How long brokers keep events and dead letters, consumed or not."
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses(cls, servers: str) -> str:
        for server in servers.split(","):
            match = _SERVER.fullmatch(server.strip())
            if match is None or not 1 <= int(match[2]) <= 65535:
                raise ValueError(f"{server.strip()!r} is not host:port with a port from 1 to 65535")
        return ",".join(server.strip() for server in servers.split(","))

    @field_validator("ssl_cafile", "ssl_certfile", "ssl_keyfile")
    @classmethod
    def _is_a_file(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise ValueError(f"there is no file {path}: mount it, or correct the path")
        return path

    @model_validator(mode="after")
    def _belongs_together(self) -> KafkaSettings:
        encrypted, logs_in = self.security_protocol.endswith("SSL"), self.security_protocol.startswith("SASL")
        files = [name for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile") if getattr(self, name) is not None]
        login = ("sasl_mechanism", "sasl_username", "sasl_password")
        given = [name for name in login if getattr(self, name) is not None]
        if files and not encrypted:
            raise ValueError(
                f"{', '.join(files)} is set, but security_protocol {self.security_protocol} does not encrypt: set it "
                "to SSL or SASL_SSL"
            )
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile go together: set both or neither")
        if given and not logs_in:
            raise ValueError(
                f"{', '.join(given)} is set, but security_protocol {self.security_protocol} does not log in: set it "
                "to SASL_SSL or SASL_PLAINTEXT"
            )
        if logs_in and len(given) < len(login):
            missing = [name for name in login if name not in given]
            raise ValueError(f"security_protocol {self.security_protocol} needs {', '.join(missing)} too")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _keeps_the_password(cls, data: Any, handler: ModelWrapValidatorHandler[KafkaSettings]) -> KafkaSettings:
        # Errors keep their input, here the whole table. Last of the validators, so around all of them.
        if isinstance(data, Mapping) and "sasl_password" in data:
            given = data["sasl_password"]
            hidden = SecretStr(given) if isinstance(given, str) else given
            known = hidden is None or isinstance(hidden, SecretStr)
            data = {**data, "sasl_password": hidden if known else _NotText()}
        return handler(data)


class _NotText:
    def __repr__(self) -> str:
        return "(hidden)"


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


class CurationSettings(BaseModel):
    """Which conversations a round may learn from. Counts and shares are of one round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    quarantine_hours: float = Field(
        24.0, ge=0, le=8760, description="How long a conversation must have been closed before it is learned from."
    )
    near_duplicate_similarity: float = Field(
        0.8,
        ge=0.5,
        le=1,
        description="From this Jaccard similarity of the customer's word triples on, two are near-duplicates.",
    )
    max_near_duplicates: int = Field(
        20, ge=1, description="Of conversations that are near-duplicates of each other, the oldest that are kept."
    )
    max_per_customer: int = Field(20, ge=1, description="Most conversations of one customer.")
    max_share_per_customer: float = Field(
        0.1, gt=0, le=1, description="Most conversations of one customer, as a share; one is always kept."
    )
    max_per_tenant_share: float = Field(
        0.5, gt=0, le=1, description="Most conversations of one tenant, as a share; never less than an equal share."
    )
    seed: int = Field(0, ge=0, description="Of the choice among conversations where not all may stay.")


class RefreshSettings(BaseModel):
    """The counterpart's warm start on what real customers said, before co-training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(True, description="Refresh the counterpart where there are turns enough.")
    min_turns: int = Field(200, ge=2, description="Real customers' turns below which there is no refresh.")
    max_steps: int = Field(200, ge=1, description="Most optimizer steps.")
    batch_size: int = Field(16, ge=1, description="Conversations in an optimizer step.")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="Peak learning rate; the champion is gone on from.")
    held_out_share: float = Field(
        0.2, gt=0, lt=1, description="Share of conversations that only the held-out perplexity is measured on."
    )
    seed: int = Field(0, ge=0, description="Of what is held out, of order and of the drawn private views.")


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
    gap_deadline_seconds: float = Field(
        3600,
        ge=1,
        description="How long a conversation waits for a missing event before it is a dead letter.",
    )
    dataset_retention_days: float | None = Field(
        None, gt=0, le=36500, description="Conversations closed longer ago leave the dataset; unset: kept for ever."
    )
    dataset_publish_seconds: float = Field(
        5.0, ge=0, le=3600, description="Shortest pause between two versions of the dataset."
    )
    min_conversations: int = Field(200, ge=1, description="New finished conversations that start a round.")
    round_every_hours: float | None = Field(
        None, gt=0, description="Also start a round when the last one is this old and any conversation is new."
    )
    drift_min_conversations: int = Field(
        200,
        ge=2,
        description="Also start a round when at least so many live conversations since the last one, with signed "
        "outcomes, show the champion under the success that the gate measured.",
    )
    drift_confidence: float = Field(0.95, ge=0.8, lt=1, description="One-sided confidence of that finding.")
    poll_seconds: float = Field(1.0, gt=0, le=60, description="Pause between looks at an idle event log.")
    live_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of training contexts from finished conversations; the rest are generated.",
    )
    max_live_contexts: int = Field(2000, ge=1, le=100_000, description="Most conversations that a round draws on.")
    evaluation_scenarios: int = Field(
        160, ge=2, le=9999, description="Seeded scenarios on which candidate and champion are compared, per opponent."
    )
    report_episodes: int = Field(20, ge=0, le=500, description="Rows of the largest changes shown in the report.")
    kafka: KafkaSettings | None = Field(
        None, description="Keep events in Kafka; unset: in a file of the state folder, for one machine."
    )
    lease_database: SecretStr | None = Field(
        None,
        description="postgresql://user:password@host/database that grants one round at a time to workers on several "
        "machines; without it a file of the state folder does so, for one machine.",
    )
    curation: CurationSettings = Field(
        default_factory=CurationSettings, description="Which conversations a round may learn from."
    )
    refresh: RefreshSettings = Field(
        default_factory=RefreshSettings, description="The counterpart's warm start on real customers' words."
    )
    gate: GateSettings = Field(default_factory=GateSettings, description="For the agent.")
    counterpart_gate: GateSettings = Field(
        default_factory=lambda: GateSettings(metric="own_reward"), description="For the counterpart."
    )

    @field_validator("lease_database")
    @classmethod
    def _is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        # The address is never quoted: it holds a password.
        if value is not None and not value.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("must be postgresql://user:password@host/database; leave it out on a single machine")
        return value

    def gate_of(self, role: Role) -> GateSettings:
        """The gate that judges a role's candidates."""
        return self.gate if role is Role.AGENT else self.counterpart_gate

    @property
    def event_log_path(self) -> Path:
        return self.state_dir / "events.db"

    @property
    def event_log_place(self) -> str:
        """Where the events are, in words for the user."""
        if self.kafka is not None:
            return f"{CONVERSATIONS_TOPIC} at {self.kafka.bootstrap_servers}"
        return str(self.event_log_path)

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
