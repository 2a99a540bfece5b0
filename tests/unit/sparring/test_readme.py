"""What the README and the docs tell the reader to type exists and is accepted.

``sparring demo`` and ``make demo`` are run for real in tests/e2e/test_demo.py, the other commands in test_cli.py and
tests/service/test_commands.py; here each is checked against what the command line and the Makefile know.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from negotiation.scenario import Context
from serving.schemas import OpenConversation
from sparring.cli import app

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(program: str) -> list[str]:
    """Lines of code and inline code that begin with the program."""
    found: list[str] = []
    for page in PAGES:
        text = re.sub(r"<!-- demo output -->.*?<!-- /demo output -->", "", page.read_text("utf-8"), flags=re.DOTALL)
        found += re.findall(rf"^ {{4}}({program} [^#\n]+)", text, flags=re.MULTILINE)
        found += re.findall(rf"`({program} [^`\n]+)`", text)
    return sorted({line.strip() for line in found})


@pytest.mark.parametrize("line", commands("sparring"))
def test_each_sparring_command_is_one(line: str) -> None:
    words = shlex.split(line)[1:]
    command: object = get_command(app)
    path: list[str] = []
    while words and words[0] in getattr(command, "commands", {}):
        path.append(words.pop(0))
        command = command.commands[path[-1]]  # type: ignore[attr-defined]
    assert path, f"{line} is no command"
    assert not hasattr(command, "commands"), f"{line} stops short of a command"
    options = {name for parameter in command.params for name in parameter.opts}  # type: ignore[attr-defined]
    for word in words:
        assert not word.startswith("-") or word in options, f"{line}: no option {word}"
    assert CliRunner().invoke(app, [*path, "--help"]).exit_code == 0


@pytest.mark.parametrize("line", commands("make"))
def test_each_make_target_exists(line: str) -> None:
    words = [word for word in shlex.split(line)[1:] if "=" not in word]
    result = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_all_commands_are_mentioned() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    top = get_command(app)
    for name in top.commands:  # type: ignore[attr-defined]
        assert f"sparring {name}" in text, f"the README does not mention sparring {name}"


def test_the_request_in_the_readme_is_a_valid_one() -> None:
    found = re.search(r"-d '(\{.*?\})'\n", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)
    assert found is not None
    body = OpenConversation.model_validate(json.loads(found[1]))
    context = Context(
        scenario=body.scenario,
        first_speaker=body.context.first_speaker,
        public=body.context.public,
        views={Role.AGENT: body.context.views.agent},
    )
    scenario_named(body.scenario).validate(context)


def test_links_point_at_files() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
