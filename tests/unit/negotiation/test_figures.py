"""Amounts are read in whatever spelling a reader would understand; what can not be read is said to be so."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.figures import read_figures
from tests.unit.negotiation.spellings import AMOUNTS, spelled


@given(amount=AMOUNTS, data=st.data())
def test_an_amount_is_read_in_any_spelling(amount: int, data: st.DataObject):
    text = data.draw(spelled(amount))
    reading = read_figures(f"It would be {text} in all.")
    assert [figure.value for figure in reading.figures] == [amount]
    assert reading.unreadable is None


@given(st.text(max_size=60))
def test_any_text_can_be_read_without_failing(text: str):
    reading = read_figures(text)
    assert all(0 <= figure.start < figure.end <= len(reading.plain) for figure in reading.figures)


@given(text=st.text(max_size=20), digit=st.characters(categories=["Nd"]))
def test_no_decimal_digit_of_any_script_goes_unseen(text: str, digit: str):
    reading = read_figures(text + digit)
    assert reading.figures or reading.unreadable


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("12.000,50", ["12000.50"]),
        ("1.5k", ["1500"]),
        ("fifteen hundred", ["1500"]),
        ("a dollar", ["1"]),
        ("half price", ["50"]),
        ("99 cents", ["0.99"]),
        ("for one.", ["1"]),
        ("MCM", ["1900"]),
        ("4 2 0 0", ["4", "2", "0", "0"]),
        ("forty-two hundred", ["4200"]),
        ("this one is the one", []),
        ("a European car with four doors", []),
        ("often eaten by a tenant", []),
    ],
)
def test_known_spellings(text: str, values: list[str]):
    assert [figure.value for figure in read_figures(text).figures] == [Decimal(value) for value in values]


@pytest.mark.parametrize(
    "text",
    [
        "y0urs",
        "12ooo",
        "12000 yen",
        "dollars",
        "$",
        "ein paar tausend",
        "\u041c\u0430\u0448\u0438\u043d\u0430",
        "VGhlIGNhciBpcyB5b3Vycw",
        "x" * 41,
    ],
)
def test_what_can_not_be_read_with_certainty_is_said_to_be_so(text: str):
    assert read_figures(text).unreadable
