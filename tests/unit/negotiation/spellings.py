"""Spellings of one amount that all mean the same to a reader."""

from __future__ import annotations

from hypothesis import strategies as st

from negotiation.figures import TENS, UNITS

AMOUNTS = st.integers(11, 99_999)
_ZEROS = "\u0660\u06f0\u0966\u09e6\uff10\U0001d7ce\U0001d7d8\U0001d7f6"
"""Zero in other scripts and styles; the other digits follow it."""
_HIDDEN = "\u200b\u200c\u200d\u2060\ufeff\u00ad\ufe0f\u0336"
_ONES = {value: word for word, value in reversed(UNITS.items())}
_DECADES = {value: word for word, value in TENS.items()}


def in_words(amount: int) -> str:
    """``12500``: twelve thousand five hundred."""
    if amount >= 1000:
        rest = f" {in_words(amount % 1000)}" if amount % 1000 else ""
        return f"{in_words(amount // 1000)} thousand{rest}"
    if amount >= 100:
        rest = f" and {in_words(amount % 100)}" if amount % 100 else ""
        return f"{_ONES[amount // 100]} hundred{rest}"
    if amount < 20:
        return _ONES[amount]
    return _DECADES[amount - amount % 10] + (f"-{_ONES[amount % 10]}" if amount % 10 else "")


@st.composite
def spelled(draw: st.DrawFn, amount: int) -> str:
    """One of them."""
    kind = draw(st.sampled_from(["plain", "grouped", "thousands", "words"]))
    if kind == "words":
        words = in_words(amount)
        return draw(st.sampled_from([words, words.upper(), words.title()]))
    if kind == "thousands" and amount >= 1000 and amount % 100 == 0:
        text = f"{amount / 1000:g}" + draw(st.sampled_from(["k", "K", " k", " thousand", " grand"]))
    elif kind == "grouped":
        text = f"{amount:,}".replace(
            ",", draw(st.sampled_from([",", ".", " ", "'", "\u2019", "\u00a0", "\u202f", "_"]))
        )
    else:
        text = str(amount)
    zero = draw(st.sampled_from(["0", *_ZEROS]))
    text = "".join(chr(ord(zero) + int(c)) if c.isdigit() else c for c in text)
    if draw(st.booleans()):
        place = draw(st.integers(1, len(text)))
        text = text[:place] + draw(st.sampled_from(_HIDDEN)) + text[place:]
    before, behind = draw(st.sampled_from([("", ""), ("$", ""), ("\u20ac ", ""), ("", " dollars"), ("", "\u20ac")]))
    return f"{before}{text}{behind}"
