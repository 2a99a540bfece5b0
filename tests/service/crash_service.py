"""A whole service as its own process, for tests that kill it: tiny model, real engine, real event log.

Run: ``python crash_service.py STATE_DIR MODEL_DIR [POSTGRES_URL]``; prints its address once it accepts connections.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from negotiation.adapter import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, AdapterManifest
from negotiation.roles import Role
from pipelines.event_log import SqliteEventLog
from serving.app import create_app
from serving.config import ServingSettings
from serving.engines.in_process import InProcessEngine
from serving.server import bind, log_json, serve
from serving.slots import AdapterSlots


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_adapter(model_dir: Path, directory: Path, name: str) -> None:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    peft = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian"))
    for key, parameter in peft.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.2)
    peft.save_pretrained(directory)
    for path in directory.iterdir():
        if path.name not in (CONFIG_FILE, WEIGHTS_FILE):
            path.unlink()
    manifest = AdapterManifest(
        name=name,
        role=Role.AGENT,
        base_model="tiny",
        base_sha256=sha256(model_dir / "model.safetensors"),
        rank=4,
        target_modules=("q_proj", "v_proj"),
        files={file: sha256(directory / file) for file in (CONFIG_FILE, WEIGHTS_FILE)},
    )
    (directory / MANIFEST_FILE).write_text(json.dumps(manifest.model_dump(mode="json")))


@dataclass(frozen=True)
class OneAdapter:
    """A registry with a single champion, made on first use."""

    model_dir: Path
    directory: Path
    name: str = "agent@1"

    def champion(self, role: Role) -> OneAdapter:
        return self

    def fetch(self) -> Path:
        if not self.directory.is_dir():
            make_adapter(self.model_dir, self.directory, self.name)
        return self.directory


def main() -> None:
    state_dir, model_dir = Path(sys.argv[1]), Path(sys.argv[2])
    log_json()
    listener = bind("127.0.0.1", 0)
    url = sys.argv[3] if len(sys.argv) > 3 else None
    settings = ServingSettings(state_dir=state_dir, max_tokens=12, reconcile_seconds=1, checkpoints_url=url)
    engine = InProcessEngine(
        model_dir, sha256(model_dir / "model.safetensors"), max_adapters=4, max_batch=32, threads=1
    )
    sink = SqliteEventLog(state_dir / "events.db")
    source = OneAdapter(model_dir, state_dir / "registry" / "agent@1")
    app = create_app(settings, engine, AdapterSlots(Role.AGENT), sink, source)
    serve(app, "127.0.0.1", 0, listener=listener, on_ready=lambda url: print(url, flush=True))
    sink.close()
    engine.close()


if __name__ == "__main__":
    main()
