"""A service as its own process whose model says the same words to everybody: for tests that kill it at a known point.

Everything but the model is the real thing: the process, HTTP, the checkpoints, the event log.

Run: ``python scripted_service.py STATE_DIR WORDS APPROVAL_ABOVE_PRICE [POSTGRES_URL]``, with the repository's root on
PYTHONPATH. Prints its address once it accepts connections.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import AutoTokenizer

from negotiation.roles import Role
from pipelines.event_log import SqliteEventLog
from serving.app import create_app
from serving.config import ServingSettings
from serving.server import bind, log_json, serve
from serving.slots import AdapterSlots
from sparring.models import resolve_base_model
from tests.unit.serving.conftest import DirectorySource, ScriptedEngine


def main() -> None:
    state_dir, words, above_price = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    log_json()
    listener = bind("127.0.0.1", 0)
    settings = ServingSettings(
        state_dir=state_dir,
        approval_above_price=above_price,
        checkpoints_url=sys.argv[4] if len(sys.argv) > 4 else None,
        reconcile_seconds=1,
    )
    engine = ScriptedEngine(AutoTokenizer.from_pretrained(resolve_base_model("bundled").path))
    engine.say = lambda request: words
    sink = SqliteEventLog(state_dir / "events.db")
    source = DirectorySource(state_dir / "registry")
    app = create_app(settings, engine, AdapterSlots(Role.AGENT), sink, source)
    serve(app, "127.0.0.1", 0, listener=listener, on_ready=lambda url: print(url, flush=True))
    sink.close()


if __name__ == "__main__":
    main()
