"""``sparring warm-start``: from a corpus file and from the dataset, and every way of refusing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from negotiation.events import Closed, ConversationEvent, Message, Opened, OutcomeReported, Payload
from negotiation.roles import Role
from negotiation.scenario import CloseReason
from negotiation.telesales import VehicleTelesales
from pipelines.event_log import SqliteEventLog
from sparring.cli import app
from sparring.recordings import REPLAYED


def dialogue(words: str) -> str:
    """Both sides' lines of one dialogue, written for this test."""
    return (
        f"1 4 4 1 1 2 YOU: {words} <eos> THEM: fine <eos> YOU: <selection> item0=1 item1=0 item2=0 <eos> "
        "reward=4 agree 1 10 4 0 1 0\n"
        f"1 10 4 0 1 0 THEM: {words} <eos> YOU: fine <eos> THEM: <selection> item0=0 item1=4 item2=1 <eos> "
        "reward=0 agree 1 4 4 1 1 2\n"
    )


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sparring.toml").write_text(f'base_model = "{tiny_model_dir}"\n[training]\nthreads = 1\n')
    (tmp_path / "corpus.txt").write_text("".join(dialogue(f"the book and {n} hats for me") for n in range(8)))


def run(*arguments: str, role: str = "agent") -> tuple[int, str, str]:
    options = ["--role", role, "--output", "adapters", "--epochs", "1"]
    result = CliRunner().invoke(app, ["warm-start", *options, *arguments])
    return result.exit_code, result.stdout, result.stderr


def record(count: int, *, source: str = "simulated", counterpart_view: bool = True) -> None:
    """Finished telesales conversations in the event log, as the service publishes them."""
    Path("var").mkdir(exist_ok=True)
    log = SqliteEventLog(Path("var") / "events.db")
    scenario = VehicleTelesales()
    for seed in range(count):
        context = scenario.generate(seed)
        view = context.views[Role.COUNTERPART] if counterpart_view else None
        payloads: list[Payload] = [
            Opened(
                context=context.model_copy(update={"views": {Role.AGENT: context.views[Role.AGENT]}}),
                adapter="agent@1",
                source=source,  # type: ignore[arg-type]
            ),
            Message(role=context.first_speaker, text="hello there", shown="hello there"),
            Message(role=context.first_speaker.other, text=f"good day {seed}", shown=f"good day {seed}"),
            Closed(reason=CloseReason.ABANDONED),
            OutcomeReported(agreed=False, counterpart_view=view),
        ]
        log.append(
            [
                ConversationEvent(
                    tenant="t", conversation_id=f"c{source}{seed}", sequence=n, consent=True, payload=payload
                )
                for n, payload in enumerate(payloads)
            ]
        )
    log.close()


@pytest.mark.parametrize("role", ["agent", "counterpart"])
def test_a_corpus_makes_an_adapter_of_either_role(role: str) -> None:
    code, out, err = run("--corpus", "corpus.txt", "--version", "3", role=role)
    assert code == 0, err
    assert out.strip() == f"adapters/{role}@3"
    assert json.loads(Path(f"adapters/{role}@3/manifest.json").read_text())["name"] == f"{role}@3"
    assert "perplexity on held-out own tokens:" in err
    assert "14 conversations" in err


def test_json_has_both_perplexities_and_what_was_left_out() -> None:
    with Path("corpus.txt").open("a") as corpus:
        corpus.write(dialogue("so " * 600))
    code, out, err = run("--corpus", "corpus.txt", "--json", "--patience", "1", "--learning-rate", "0.001")
    assert code == 0, err
    report = json.loads(out)
    assert report["perplexity_after"] <= report["perplexity_before"]
    assert report["left_out"] == {"longer than the context window": 2}
    assert report["views"] + report["held_out_views"] == 16
    assert report["manifest"]["role"] == "agent"


@pytest.mark.parametrize("role", ["agent", "counterpart"])
def test_the_dataset_is_learned_from_by_default(role: str) -> None:
    record(6)
    record(2, source="replay")
    code, out, err = run("--json", role=role)
    assert code == 0, err
    report = json.loads(out)
    assert report["views"] + report["held_out_views"] == 6
    assert report["left_out"] == {REPLAYED: 2}


def test_a_counterpart_whose_view_nobody_told_cannot_be_learned() -> None:
    record(3, counterpart_view=False)
    code, _, err = run(role="counterpart")
    assert code == 2
    assert "left out: 3 the role's private view is unknown" in err
    assert not Path("adapters").exists()


def test_no_conversations_says_what_to_do() -> None:
    code, _, err = run()
    assert code == 2
    assert "no finished conversations of telesales to learn from: serve some" in err
    assert "--corpus" in err


def test_a_malformed_line_is_named() -> None:
    with Path("corpus.txt").open("a") as corpus:
        corpus.write("1 4 4 one 1 2 YOU: hello <eos>\n")
    code, _, err = run("--corpus", "corpus.txt")
    assert code == 2
    assert "error: corpus.txt:17:" in err


def test_text_in_another_encoding_is_named() -> None:
    Path("corpus.txt").write_bytes(dialogue("hello").encode() + b"1 4 \xff\n")
    code, _, err = run("--corpus", "corpus.txt")
    assert code == 2
    assert "error: corpus.txt:3: not UTF-8 text" in err


def test_an_empty_corpus_is_refused() -> None:
    Path("empty.txt").touch()
    code, _, err = run("--corpus", "empty.txt")
    assert code == 2
    assert "empty.txt holds no dialogue to learn from" in err


def test_one_dialogue_is_too_few() -> None:
    Path("one.txt").write_text(dialogue("hello"))
    code, _, err = run("--corpus", "one.txt")
    assert code == 2
    assert "1 different conversations, at least 2 are needed" in err


def test_an_existing_version_is_refused() -> None:
    Path("adapters/agent@1").mkdir(parents=True)
    code, _, err = run("--corpus", "corpus.txt")
    assert code == 2
    assert "adapters/agent@1 exists: adapter versions are immutable, choose another --version" in err


def test_a_learning_rate_of_nothing_is_refused() -> None:
    code, _, err = run("--corpus", "corpus.txt", "--learning-rate", "0")
    assert code == 2
    assert "--learning-rate 0.0 will not do" in err
