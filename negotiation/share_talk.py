"""What an agent who divides a pool may say of shares, beside its move.

No money is at stake, so little is limited: counts of an item must fit the pool, and where the message proposes, they
must be those of the proposal (either side's share). Words that close need the move that closes, and promises are
not made. Counts without an item's name are not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from negotiation.commitments import Commitment, commitments, spelled_out
from negotiation.figures import UNITS, read_figures

_ALL = frozenset({"all", "both", "every"})


def share_overstep(
    words: str,
    items: Sequence[str],
    counts: Sequence[int],
    parts: tuple[Sequence[int], Sequence[int]] | None,
    *,
    closes: bool,
) -> str | None:
    """Why these words may not be shown, or None. ``parts``: what the move proposes, this side's and the other's."""
    reading = read_figures(words)
    if reading.unreadable or spelled_out(words):
        return f"it can not be read with certainty: {reading.unreadable or 'letters stand apart'}"
    number = "|".join(sorted((*UNITS, *_ALL, r"\d+"), key=len, reverse=True))
    for place, item in enumerate(items):
        for match in re.finditer(rf"\b({number}) (?:of )?(?:the )?{item}s?\b", reading.plain):
            said = match[1]
            count = counts[place] if said in _ALL else int(said) if said.isdigit() else UNITS[said]
            fits = count <= counts[place] if parts is None else count in (parts[0][place], parts[1][place])
            if not fits:
                return f"the words say {count} of {item}, which the move does not"
    found = commitments(words)
    if Commitment.PROMISE in found:
        return "the words promise what no move makes"
    if Commitment.CLOSING in found and not closes:
        return "the words close a deal that no move closes"
    return None
