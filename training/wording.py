"""Makes words strange and keeps what they say, so that a small model learns to read content, not phrases.

A model that has only ever heard one family's sentences takes any other sentence for the end of the world. In a
share of the warm start's dialogues, what the other side said is therefore written anew: words that carry no content
give way to invented ones, and numbers, moves and the scenarios' own terms stay. No held-out family's wording is
used or needed.
"""

from __future__ import annotations

import random
import re

from negotiation.deal_or_no_deal import ITEMS
from negotiation.scenario import Context, NegotiationState
from negotiation.telesales import BODIES, FUELS, OBJECTIONS
from training.counterparts.negotiator import Negotiator

_CONTENT = {*BODIES, *FUELS, *OBJECTIONS, *ITEMS, *(f"{item}s" for item in ITEMS), "nothing"}
_PART = re.compile(r"(\[[^\]]*\]|\w+|[^\w\s])")
_ONSETS = ("b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "w", "st", "th", "br", "cl", "wh", "")
_VOWELS = ("a", "e", "i", "o", "u", "ea", "ou", "y")
_CODAS = ("", "", "n", "r", "t", "s", "ll", "d", "m", "ng", "ck", "ve")
_MOST_WORDS = 8


def strange(text: str, rng: random.Random) -> str:
    """``text`` with its content in order, each run of other words replaced by 0 to 4 invented ones.

    Moves (``[offer suv 15250]``), numbers and the scenarios' terms are kept as they are. A question may lose its
    mark: people ask without one too.
    """
    words: list[str] = []
    dropped, invented = False, 0
    for part in _PART.findall(text):
        kept = part.startswith("[") or part.isdigit() or part.lower() in _CONTENT
        if not kept:
            dropped = True
            continue
        if dropped or not words:
            count = rng.randint(0, 4)
            words += [_invent(rng) for _ in range(min(count, _MOST_WORDS - invented))]
            invented += count
        words.append(part.lower())
        dropped = False
    if dropped or not words:
        words += [_invent(rng) for _ in range(rng.randint(1, 4))]
    ending = rng.choice(("?", ".", "") if "?" in text else (".", "", "!"))
    move = words.pop() if words[-1].startswith("[") else ""
    said = " ".join(words) + ending if words else ""
    return f"{said} {move}".strip()


class StrangeNegotiator:
    """A negotiator who does what another does, in strange words."""

    def __init__(self, negotiator: Negotiator) -> None:
        self._negotiator = negotiator
        self.name, self.family, self.role = f"{negotiator.name}-strange", negotiator.family, negotiator.role

    def reply(self, context: Context, state: NegotiationState, rng: random.Random) -> str:
        return strange(self._negotiator.reply(context, state, rng), rng)


def _invent(rng: random.Random) -> str:
    syllables = rng.choice((1, 1, 2))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))
