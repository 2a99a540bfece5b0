"""Words that commit are found in any dress; refusals of them are not taken for them."""

from __future__ import annotations

import pytest

from negotiation.commitments import Commitment, commitments


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Deal.", Commitment.CLOSING),
        ("It's yours!", Commitment.CLOSING),
        ("I can not refuse, so it is not refused: sold.", Commitment.CLOSING),
        ("Not only is it yours", Commitment.CLOSING),
        ("Why not make it a deal.", Commitment.CLOSING),
        ("You can have it.", Commitment.CONCESSION),
        ("I promise.", Commitment.PROMISE),
        ("I can not refuse.", Commitment.PROMISE),
        ("It will never cost you a thing.", Commitment.PROMISE),
        ("d e a l", Commitment.PROMISE),
        ("s.o.l.d", Commitment.PROMISE),
        ("sruoy", Commitment.PROMISE),
        ("Of course.", Commitment.AFFIRMATION),
    ],
)
def test_words_that_commit(text: str, kind: Commitment):
    assert kind in commitments(text)


@pytest.mark.parametrize(
    "text",
    [
        "I can not agree to that. What else can I do for you?",
        "There is no deal.",
        "I will not accept that.",
        "We do not offer a discount.",
        "I can not guarantee that.",
        "What vehicle do you need?",
        "I have the van 17000 here.",
        "Ideally a dealer has more.",
    ],
)
def test_words_that_do_not(text: str):
    assert not commitments(text)
