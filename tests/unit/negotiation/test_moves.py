"""A message binds only through one well-formed move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.moves import Move, parse_message

words = st.text(st.characters(blacklist_characters="[]", blacklist_categories=("Cs",)), max_size=40)
kinds = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
arguments = st.lists(st.from_regex(r"[A-Za-z0-9]{1,6}", fullmatch=True), max_size=4)


@given(words, kinds, arguments)
def test_a_written_move_is_read_back(speech: str, kind: str, args: list[str]) -> None:
    move = Move(kind=kind, arguments=tuple(args))
    parsed = parse_message(f"{speech} {move}")
    assert parsed.move == move
    assert parsed.malformed is None
    assert parsed.speech == " ".join(speech.split())


@given(words)
def test_words_alone_never_make_a_move(speech: str) -> None:
    assert parse_message(speech).move is None


@given(kinds, kinds)
def test_two_moves_bind_nobody(first: str, second: str) -> None:
    parsed = parse_message(f"[{first}] and [{second}]")
    assert parsed.move is None
    assert parsed.malformed == "2 moves in one message"


@pytest.mark.parametrize("text", ["[", "]", "[]", "[offer A", "offer A]", "[OFFER A 1]", "[[offer A 1]]", "[ ]"])
def test_malformed_brackets_are_named(text: str) -> None:
    parsed = parse_message(text)
    assert parsed.move is None
    assert parsed.malformed
