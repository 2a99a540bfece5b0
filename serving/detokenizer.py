"""Text out of tokens as they come: only ever appended to, and in the end the very text of all tokens together.

Held back until it is certain: bytes of a character that is not whole yet, and white space at the end, since the
whole text is given without any. The tokens are decoded from the first one each time (a tokenizer's spaces depend
on what stands before), which is cheap for replies and would not be for books.
"""

from __future__ import annotations

from collections.abc import Sequence

from negotiation.generation import Tokenizer

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class IncrementalText:
    """The text of one reply. Control tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = ""

    def take(self, token_ids: Sequence[int]) -> str:
        """What can be appended to the text now; may be nothing."""
        self._ids.extend(token_ids)
        return self._advance(self._decode().rstrip(_INCOMPLETE).rstrip())

    def finish(self) -> str:
        """The rest: there will be no more tokens."""
        return self._advance(self._decode())

    @property
    def whole(self) -> str:
        """All that was given so far."""
        return self._given

    def _decode(self) -> str:
        return str(self._tokenizer.decode(list(self._ids), skip_special_tokens=True)).strip()

    def _advance(self, text: str) -> str:
        if not text.startswith(self._given):
            # Held-back bytes turned out to be another character: wait until what was given is a prefix again.
            return ""
        piece = text[len(self._given) :]
        self._given = text
        return piece
