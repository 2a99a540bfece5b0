"""Readers of the corpus formats, on lines of our own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.corpus import CorpusError, read_contexts, read_dialogues
from negotiation.deal_or_no_deal import DealOrNoDeal, Pool, Values, read_share, remainder, worth
from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import CloseReason

DEAL = (
    "1 4 4 1 1 2 YOU: book for me <eos> THEM: sure <eos> YOU: "
    "<selection> item0=1 item1=0 item2=0 <eos> reward=4 agree 1 2 4 2 1 0"
)
DIFFER = (
    "1 4 4 1 1 2 THEM: all mine <eos> YOU: ok <eos> THEM: "
    "<selection> item0=1 item1=4 item2=1 <eos> reward=10 disagree 1 2 4 2 1 0"
)
NO_DEAL = (
    "1 4 4 1 1 2 THEM: hm <eos> YOU: no <eos> THEM: "
    "<selection> no agreement <eos> reward=no agreement agree 1 2 4 2 1 0"
)
ONE_NO = NO_DEAL.replace("agreement agree", "agreement disagree")
LEFT = "1 4 4 1 1 2 YOU: hm <eos> THEM: <selection> disconnect <eos> reward=disconnect disagree 1 2 4 2 1 0"
LEFT_BOTH = LEFT.replace("disconnect disagree", "disconnect agree")


def test_a_deal_is_read_from_the_agents_chair() -> None:
    (dialogue,) = read_dialogues([DEAL], "talk.txt")
    assert dialogue.deal
    assert dialogue.points == {Role.AGENT: 4, Role.COUNTERPART: 8}
    assert dialogue.pareto_optimal is False
    assert [said.text for said in dialogue.utterances] == ["book for me", "sure"]
    context = dialogue.context()
    assert context.first_speaker is Role.AGENT
    DealOrNoDeal().validate(context)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (DEAL, CloseReason.AGREED),
        (DIFFER, CloseReason.STATEMENTS_DIFFER),
        (NO_DEAL, CloseReason.WALKED_AWAY),
        (ONE_NO, CloseReason.STATEMENTS_DIFFER),
        (LEFT, CloseReason.ABANDONED),
        (LEFT_BOTH, CloseReason.WALKED_AWAY),
    ],
)
def test_every_ending_has_its_reason_and_only_deals_have_points(line: str, reason: CloseReason) -> None:
    (dialogue,) = read_dialogues([line], "talk.txt")
    assert dialogue.closed is reason
    assert (sum(dialogue.points.values()) > 0) == dialogue.deal == (reason is CloseReason.AGREED)
    assert (dialogue.pareto_optimal is not None) == dialogue.deal


def test_blank_lines_are_passed_over_and_do_not_shift_line_numbers() -> None:
    first, second = read_dialogues([DEAL, "", NO_DEAL], "talk.txt")
    assert (first.line, second.line) == (1, 3)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 4 4 1 1 2", "too few"),
        (DEAL.replace("1 4 4 1 1 2", "1 4 x 1 1 2"), "'x'"),
        (DEAL.replace("1 4 4 1 1 2", "1 4 4 1 1 3"), "must be exactly 10"),
        (DEAL.replace("1 2 4 2 1 0", "1 2 5 1 1 3"), "both see the same pool"),
        (DEAL.replace("YOU: book", "US: book"), "YOU: or THEM:"),
        (DEAL.replace("THEM: sure", "YOU: sure"), "in a row"),
        (DEAL.replace("THEM: sure", "THEM:"), "no words"),
        (DEAL.replace("<selection> ", ""), "<selection>"),
        (DEAL.replace("item2=0", "item2=2"), "takes more than the pool"),
        (DEAL.replace("item2=0", "item2=-1"), "item2=-1"),
        (DEAL.replace("reward=4", "reward=5"), "reward=5"),
        (DEAL.replace("4 agree", "4 maybe"), "maybe"),
        (DEAL.replace(" <eos>", ""), "<eos>"),
    ],
)
def test_a_malformed_line_names_file_line_and_value(line: str, problem: str) -> None:
    with pytest.raises(CorpusError, match=r"^talk\.txt:2: ") as raised:
        list(read_dialogues([DEAL, line], "talk.txt"))
    assert problem in str(raised.value)


@given(st.text())
def test_any_text_is_read_or_refused_with_its_place(line: str) -> None:
    if line.strip():
        with pytest.raises(CorpusError, match=r"^talk\.txt:1: "):
            list(read_dialogues([line], "talk.txt"))
    else:
        assert list(read_dialogues([line], "talk.txt")) == []


@given(st.integers(0, 10_000), st.data())
def test_a_written_deal_reads_back(seed: int, data: st.DataObject) -> None:
    context = DealOrNoDeal().generate(seed)
    counts = Pool.model_validate(context.public).counts
    own = Values.model_validate(context.views[Role.AGENT]).values
    other = Values.model_validate(context.views[Role.COUNTERPART]).values
    share = read_share(
        Move(kind="select", arguments=tuple(str(data.draw(st.integers(0, count))) for count in counts)), counts
    )
    pairs = " ".join(f"{count} {value}" for count, value in zip(counts, own, strict=True))
    theirs = " ".join(f"{count} {value}" for count, value in zip(counts, other, strict=True))
    items = " ".join(f"item{i}={n}" for i, n in enumerate(share))
    line = f"{pairs} THEM: yes <eos> YOU: <selection> {items} <eos> reward={worth(own, share)} agree {theirs}"
    (dialogue,) = read_dialogues([line], "talk.txt")
    assert (dialogue.counts, dialogue.own, dialogue.other, dialogue.share) == (counts, own, other, share)
    assert dialogue.points[Role.COUNTERPART] == worth(other, remainder(counts, share))


def test_contexts_come_in_pairs() -> None:
    contexts = list(read_contexts(["1 4 4 1 1 2", "1 2 4 2 1 0", "", "1 4 4 1 1 2", "1 1 4 2 1 1"], "ctx.txt"))
    assert len(contexts) == 2
    assert contexts[0].views == {Role.AGENT: {"values": [4, 1, 2]}, Role.COUNTERPART: {"values": [2, 2, 0]}}
    for context in contexts:
        DealOrNoDeal().validate(context)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["1 4 4 1 1 2"], r"ctx\.txt:1: the last line has no pair"),
        (["1 4 4 1 1 2", "1 1 5 1 1 4"], r"ctx\.txt:2: counts .* differ from .* on line 1"),
        (["1 4 4 1 1"], r"ctx\.txt:1: expected six numbers"),
        (["1 4 4 1 1 2", "1 2 4 2 1 1"], r"ctx\.txt:2: .* must be exactly 10"),
    ],
)
def test_malformed_contexts_are_named(lines: list[str], problem: str) -> None:
    with pytest.raises(CorpusError, match=problem):
        list(read_contexts(lines, "ctx.txt"))
