"""What a round learns from, fixed in its folder at the first try, so that a resumed round learns from the same."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import BaseModel

from negotiation.scenario import Context, Scenario
from pipelines.calibration import usable_contexts
from pipelines.config import PipelineSettings
from pipelines.curated_conversations import contexts_of, curated
from pipelines.round_state import write_atomically


class Material(BaseModel):
    """``conversations``: ids that curation let through, oldest first, and ``curation`` its figures.

    ``contexts`` are theirs, less ``skipped`` ones that are invalid or held out.
    """

    contexts: tuple[Context, ...]
    conversations: tuple[str, ...] = ()
    curation: dict[str, int] = {}
    skipped: int = 0


def gather(settings: PipelineSettings, scenario: Scenario, path: Path, now: datetime) -> Material:
    """The material kept at ``path``, chosen from the dataset and written there if there is none yet."""
    if not path.exists():
        directory, room = settings.datasets_dir, settings.max_live_contexts
        chosen = curated(directory, scenario.name, settings.curation, now, room=room)
        usable, skipped = usable_contexts(scenario, contexts_of(directory, scenario.name, chosen.kept))
        material = Material(contexts=usable, conversations=chosen.kept, curation=chosen.figures(), skipped=skipped)
        write_atomically(path, material.model_dump_json())
    return Material.model_validate_json(path.read_bytes())
