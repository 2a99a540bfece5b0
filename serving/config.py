"""Settings of the service. Plain values, validated once; nothing here reads the environment or a file."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class EngineSettings(BaseModel):
    """The in-process engine and its adapter slots."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threads: int = Field(1, ge=1, le=256, description="CPU threads torch may use for one batch.")
    max_batch: int = Field(32, ge=1, le=1024, description="Requests generated together, across adapters.")
    max_adapters: int = Field(6, ge=2, le=256, description="Adapter versions held at once, pinned ones included.")
    max_adapter_rank: int = Field(64, ge=1, le=512, description="Highest LoRA rank that is accepted.")


class ServingSettings(BaseModel):
    """Everything the HTTP service can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8700, ge=0, le=65535, description="TCP port; 0 takes any free one.")
    state_dir: Path = Field(Path("var"), description="Folder of everything the service must remember.")
    keys_file: Path | None = Field(None, description="API key hashes; by default keys.json in state_dir.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="The in-process engine.")
    max_message_bytes: int = Field(4096, ge=1, le=1_000_000, description="Longest customer message, UTF-8 bytes.")
    max_body_bytes: int = Field(65_536, ge=1024, le=10_000_000, description="Longest request body, bytes.")
    max_tokens: int = Field(48, ge=1, le=4096, description="Most tokens in one reply of the agent.")
    temperature: float = Field(
        1.0, ge=0, le=2, description="Sampling temperature of replies; 1 is what training uses, 0 is greedy."
    )
    max_waiting: int = Field(256, ge=1, le=100_000, description="Replies in progress before 503 is answered.")
    reply_timeout_seconds: float = Field(60.0, gt=0, le=3600, description="Longest wait for one reply.")
    reconcile_seconds: float = Field(5.0, gt=0, le=3600, description="Pause between looks at the registry.")
    conversation_ttl_seconds: float = Field(
        3600.0, gt=0, le=30 * 86_400, description="An open conversation idle for longer is closed as abandoned."
    )
    idempotency_ttl_seconds: float = Field(
        86_400.0, gt=0, le=30 * 86_400, description="How long an answer is kept for its Idempotency-Key."
    )
    shutdown_seconds: int = Field(20, ge=1, le=600, description="Grace for running requests at shutdown.")

    @property
    def keys_path(self) -> Path:
        return self.keys_file or self.state_dir / "keys.json"

    @property
    def adapters_dir(self) -> Path:
        return self.state_dir / "adapters"
