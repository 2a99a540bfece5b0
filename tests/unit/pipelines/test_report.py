"""The report: whole, self-contained, and safe whatever text it is given."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import ClassVar

from negotiation.roles import Role
from pipelines.gate import GateDecision, Interval
from pipelines.report import render_report
from pipelines.round_state import RoleVerdict, RoundResult

LEVELS = {metric: Interval(0.5, 0.4, 0.6) for metric in ("success", "own_reward", "blocked_offers")}
CHANGE = {metric: Interval(0.12, 0.05, 0.19) for metric in LEVELS}
DECISION = GateDecision(
    promote=True,
    reasons=("The success rises.",),
    metric="success",
    differences=CHANGE,
    candidate=LEVELS,
    champion=LEVELS,
    by_opponent={"haggler": CHANGE["success"], "walker": Interval(-0.1, -0.2, 0.0)},
    pairs=80,
    scenarios=40,
)
RESULT = RoundResult(
    version=7,
    run_id="run",
    scenario="telesales",
    trained_on=11,
    steps=3,
    seconds=61.0,
    verdicts={role: RoleVerdict.of(role, f"{role}@1", f"{role}@7", DECISION) for role in Role},
    report="report.html",
)
CURVES = {role: [{"reward": 0.1 * step, "kl": 0.01} for step in range(3)] for role in Role}


def test_it_says_what_was_decided_and_why() -> None:
    page = render_report(RESULT, CURVES, {"training.steps": 3})
    for words in (
        "agent@7",
        "counterpart@1",
        "The success rises.",
        "0.120 [0.050, 0.190]",
        "haggler",
        "training.steps",
    ):
        assert words in page
    assert page.count("<svg") == page.count("</svg>") == 2


def test_it_fetches_nothing_from_anywhere() -> None:
    page = render_report(RESULT, CURVES, {})
    for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page):
        raise AssertionError(f"{tag} would be fetched")
    assert not re.findall(r"(?:src|href)\s*=\s*[\"']https?:", page.replace('xlink:href="#', ""))


def test_the_same_round_gives_the_same_bytes() -> None:
    assert render_report(RESULT, CURVES, {}) == render_report(RESULT, CURVES, {})


def test_text_is_escaped() -> None:
    nasty = replace(DECISION, reasons=("<script>alert(1)</script>",), by_opponent={"<b>x": CHANGE["success"]})
    result = replace(RESULT, verdicts={Role.AGENT: RoleVerdict.of(Role.AGENT, "a", "b", nasty)})
    page = render_report(result, {}, {"<i>": "<u>"})

    class Tags(HTMLParser):
        seen: ClassVar[set[str]] = set()

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.seen.add(tag)

    parser = Tags()
    parser.feed(page)
    assert not parser.seen & {"script", "b", "i", "u"}
