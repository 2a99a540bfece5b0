"""The benchmark after Lewis et al. 2017 runs as docs/ says, on a small corpus written here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from negotiation.corpus import read_contexts, read_dialogues
from negotiation.deal_or_no_deal import DealOrNoDeal, Pool, Split, Values, remainder, worth
from negotiation.roles import Role

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
DIALOGUES, CONTEXTS = 30, 40


def sides(seed: int) -> tuple[str, str, Split, Split, Split]:
    """Both sides' ``count value`` lists of a generated scenario, its pool and both sides' values."""
    context = DealOrNoDeal().generate(seed)
    counts = Pool.model_validate(context.public).counts
    own, other = (Values.model_validate(context.views[role]).values for role in Role)

    def written(values: Split) -> str:
        return " ".join(f"{count} {value}" for count, value in zip(counts, values, strict=True))

    return written(own), written(other), counts, own, other


def dialogue(seed: int) -> list[str]:
    """Two lines: one asks for all its books, the other takes what is left."""
    one, two, counts, own, other = sides(seed)
    share: Split = (counts[0], 0, 0)
    rest = remainder(counts, share)
    items, left = (" ".join(f"item{i}={n}" for i, n in enumerate(split)) for split in (share, rest))
    asked = f"can i have the {counts[0]} books ?"
    return [
        f"{one} YOU: {asked} <eos> THEM: ok deal <eos> YOU: <selection> {items} <eos> "
        f"reward={worth(own, share)} agree {two}",
        f"{two} THEM: {asked} <eos> YOU: ok deal <eos> THEM: <selection> {left} <eos> "
        f"reward={worth(other, rest)} agree {one}",
    ]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "dialogues.txt").write_text("".join(f"{line}\n" for n in range(DIALOGUES) for line in dialogue(n)))
    (folder / "contexts.txt").write_text("".join(f"{line}\n" for n in range(CONTEXTS) for line in sides(n)[:2]))
    return folder


def run(corpus: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "bench" / "lewis2017.py"), "--corpus", str(corpus), "--work", "work"]
    return subprocess.run(
        [*command, "--quick", "--output", "figures.json", *options],
        cwd=folder,
        # Wide enough for the table: in 80 columns its headings are broken.
        env={**os.environ, "COLUMNS": "160", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_row_is_measured_and_finished_stages_are_kept(corpus: Path, tmp_path: Path) -> None:
    assert len(list(read_dialogues((corpus / "dialogues.txt").read_text().splitlines(), "d"))) == 2 * DIALOGUES
    assert len(list(read_contexts((corpus / "contexts.txt").read_text().splitlines(), "c"))) == CONTEXTS
    result = run(corpus, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Lewis et al. 2017 (not verified)" in result.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())
    rows = figures["seeds"]["1"]["rows"]
    assert list(rows) == ["LIKELIHOOD", "RL", "co-trained"]
    for row in rows.values():
        assert row["dialogues"] == 8
        assert 0 <= row["agreed"]["low"] <= row["agreed"]["mean"] <= row["agreed"]["high"] <= 1
        assert (row["score_agreed"]["mean"] is None) == (row["agreed"]["mean"] == 0)
    likelihood = figures["seeds"]["1"]["likelihood"]
    assert likelihood["human"]["perplexity_after"] < likelihood["human"]["perplexity_before"]
    stages = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.json")}
    assert run(corpus, tmp_path).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in stages} == stages
    assert json.loads((tmp_path / "figures.json").read_text()) == figures
    with (corpus / "dialogues.txt").open("a") as more:
        more.write(dialogue(DIALOGUES - 1)[0] + "\n")
    changed = run(corpus, tmp_path)
    assert changed.returncode == 2
    assert "was made with other settings" in " ".join(changed.stderr.replace("│", " ").split())
