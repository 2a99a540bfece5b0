"""Settings of the service. Plain values, validated once; nothing here reads the environment or a file."""

from __future__ import annotations

from pathlib import Path

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr, field_validator

from serving.redaction import RedactionSettings


class EngineSettings(BaseModel):
    """The in-process engine and its adapter slots."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threads: int = Field(1, ge=1, le=256, description="CPU threads torch may use for one batch.")
    max_batch: int = Field(32, ge=1, le=1024, description="Requests generated together, across adapters.")
    max_adapters: int = Field(6, ge=2, le=256, description="Adapter versions held at once, pinned ones included.")
    max_adapter_rank: int = Field(64, ge=1, le=512, description="Highest LoRA rank that is accepted.")


class VllmSettings(BaseModel):
    """vLLM servers that generate in place of the in-process engine.

    Each must serve the configured base model, with ``--enable-lora`` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and
    see the state directory under the same path.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    urls: tuple[HttpUrl, ...] = Field(min_length=1, description="Addresses of the servers, such as http://vllm:8000.")
    api_key: SecretStr | None = Field(None, description="The key that the servers were started with (--api-key).")
    connect_seconds: float = Field(2.0, gt=0, le=60, description="Longest wait for a connection.")
    read_seconds: float = Field(60.0, gt=0, le=3600, description="Longest wait for the next part of an answer.")
    max_connections: int = Field(256, ge=1, le=10_000, description="Connections to all servers together.")
    attempts: int = Field(3, ge=1, le=10, description="Tries of one request, the first included.")
    retry_share: float = Field(0.2, ge=0, le=1, description="Retries over all, as a share of requests.")
    probe_seconds: float = Field(2.0, gt=0, le=300, description="Pause between looks at each server.")
    probe_tolerance: float = Field(
        0.02, gt=0, le=1, description="How far servers may differ on a fixed prompt, mean nats a token."
    )
    prompts_per_request: int = Field(16, ge=1, le=256, description="Rollout prompts sent together.")


class ServingSettings(BaseModel):
    """Everything the HTTP service can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8700, ge=0, le=65535, description="TCP port; 0 takes any free one.")
    state_dir: Path = Field(Path("var"), description="Folder of everything the service must remember.")
    keys_file: Path | None = Field(None, description="API key hashes; by default keys.json in state_dir.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="The in-process engine.")
    vllm: VllmSettings | None = Field(None, description="Generate on vLLM servers; unset: in this process.")
    max_message_bytes: int = Field(4096, ge=1, le=1_000_000, description="Longest customer message, UTF-8 bytes.")
    max_body_bytes: int = Field(65_536, ge=1024, le=10_000_000, description="Longest request body, bytes.")
    max_tokens: int = Field(48, ge=1, le=4096, description="Most tokens in one reply of the agent.")
    temperature: float = Field(
        1.0, ge=0, le=2, description="Sampling temperature of replies; 1 is what training uses, 0 is greedy."
    )
    max_waiting: int = Field(256, ge=1, le=100_000, description="Replies in progress before 503 is answered.")
    requests_per_minute: int = Field(
        12_000, ge=0, le=10_000_000, description="Requests a minute of one API key before 429; 0: no limit."
    )
    concurrent_requests: int = Field(
        128, ge=0, le=100_000, description="Requests of one API key at once before 429; 0: no limit."
    )
    failed_keys_per_minute: int = Field(
        30, ge=0, le=1_000_000, description="Requests a minute of one address without a valid key before 429; 0: any."
    )
    max_headers: int = Field(64, ge=16, le=1024, description="Most headers of one request before 431.")
    trusted_proxies: tuple[str, ...] = Field(
        (), description="Addresses whose X-Forwarded-For is believed; by default nobody's."
    )
    approval_above_price: int | None = Field(
        None, ge=0, description="Offers and acceptances at this price or over, minor units, wait for approval."
    )
    approval_below_margin: float | None = Field(
        None, ge=0, le=1, description="So do those under this share of the way from floor to list price."
    )
    reply_timeout_seconds: float = Field(60.0, gt=0, le=3600, description="Longest wait for one reply.")
    reconcile_seconds: float = Field(5.0, gt=0, le=3600, description="Pause between looks at the registry.")
    conversation_ttl_seconds: float = Field(
        3600.0, gt=0, le=30 * 86_400, description="An open conversation idle for longer is closed as abandoned."
    )
    idempotency_ttl_seconds: float = Field(
        86_400.0, gt=0, le=30 * 86_400, description="How long an answer is kept for its Idempotency-Key."
    )
    shutdown_seconds: int = Field(20, ge=1, le=600, description="Grace for running requests at shutdown.")
    checkpoints_url: SecretStr | None = Field(
        None,
        description="Where conversations are kept: postgresql://user:password@host/database, shared by any number "
        "of replicas. Without it, SQLite files in state_dir.",
    )
    checkpoints_pool_size: int = Field(
        10, ge=1, le=1000, description="Postgres connections for checkpoints, and as many again for the index."
    )
    checkpoints_timeout_seconds: float = Field(
        5.0, gt=0, le=60, description="Longest wait for a Postgres connection before 503 is answered."
    )
    conversation_retention_seconds: float = Field(
        90 * 86_400.0,
        gt=0,
        le=10 * 366 * 86_400,
        description="A conversation closed for longer is erased here (not from the event log); open ones never are.",
    )
    min_free_bytes: int = Field(
        64 * 2**20, ge=0, description="Free bytes on state_dir's disk below which no message is taken (503)."
    )
    max_outbox_events: int = Field(
        1_000_000, ge=1, description="Events that may wait for an absent event log before no message is taken (503)."
    )
    redaction: RedactionSettings = Field(
        default_factory=RedactionSettings, description="Personal data in events that leave the service."
    )
    traces_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+/\S*$",
        description="OTLP/HTTP address for traces, path included: http://collector:4318/v1/traces. Without it, none.",
    )
    traces_message_content: bool = Field(
        False,
        description="Put prompts and replies into traces: personal data, and the agent's private limits. Off by "
        "default; the receiver must be allowed to hold both.",
    )

    @field_validator("checkpoints_url")
    @classmethod
    def _is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        # The address is never quoted: it holds a password.
        if value is None:
            return None
        url = value.get_secret_value()
        if not url.startswith(("postgresql://", "postgres://")):
            raise ValueError(
                "must be postgresql://user:password@host/database (or postgres://...); leave it out for SQLite files "
                "in state_dir"
            )
        try:
            parts = conninfo_to_dict(url)
        except ProgrammingError:
            parts = {"host": "@"}
        # libpq would name such a host or database in its errors, and with it the rest of the password.
        if any("@" in str(parts.get(part, "")) for part in ("host", "port", "dbname")):
            raise ValueError(
                "cannot be read as postgresql://user:password@host/database: percent-encode what is special in the "
                "user and the password (@ is %40, / is %2F)"
            )
        return value

    @property
    def keys_path(self) -> Path:
        return self.keys_file or self.state_dir / "keys.json"

    @property
    def adapters_dir(self) -> Path:
        return self.state_dir / "adapters"
