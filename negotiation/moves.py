"""Structured moves: the only part of a message that can bind anyone.

A message is free text that may end in one move written in square brackets, for example
``I can let you have it for less. [offer B 17250]``. The words carry no authority; the move does, once the
scenario finds it legal and the authority limits allow it. The grammar is plain text, so that any language
model can write it: ``[kind argument argument ...]`` with lower-case kinds.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field

_BRACKETED = re.compile(r"\[([^\[\]]*)\]")
_KIND = re.compile(r"[a-z]+")


class Move(BaseModel):
    """One structured move: a kind (``offer``, ``accept``, ...) and its positional arguments."""

    model_config = ConfigDict(frozen=True)

    kind: str = Field(description="What is done, such as offer or accept.")
    arguments: tuple[str, ...] = Field((), description="In the scenario's order, such as vehicle and price.")

    def __str__(self) -> str:
        return "[" + " ".join((self.kind, *self.arguments)) + "]"


class ParsedMessage(BaseModel):
    """A message taken apart.

    ``text`` is the message as written, ``speech`` the words without brackets, ``move`` the one structured
    move or None, ``malformed`` why brackets were present and yet no move could be read.
    """

    model_config = ConfigDict(frozen=True)

    text: str
    speech: str
    move: Move | None = None
    malformed: str | None = None


def with_move(text: str, move: Move) -> str:
    """``text`` with its brackets replaced by ``move``: what the other side is shown of it."""
    return _BRACKETED.sub(str(move), text, count=1)


def parse_message(text: str) -> ParsedMessage:
    """Read the structured move out of a message.

    No brackets: no move. Exactly one well-formed bracket: that move. Anything else (two moves, an empty
    bracket, an unclosed one) is malformed and has no move: an ambiguous message must not bind.
    """
    text = text.strip()
    found = _BRACKETED.findall(text)
    speech = " ".join(_BRACKETED.sub(" ", text).split())
    if not found:
        stray = "[" in text or "]" in text
        return ParsedMessage(text=text, speech=speech, malformed="unclosed bracket" if stray else None)
    if len(found) > 1:
        return ParsedMessage(text=text, speech=speech, malformed=f"{len(found)} moves in one message")
    if "[" in speech or "]" in speech:
        return ParsedMessage(text=text, speech=speech, malformed="unbalanced brackets")
    kind, *arguments = found[0].split() or [""]
    if not _KIND.fullmatch(kind):
        return ParsedMessage(text=text, speech=speech, malformed=f"no move kind in [{found[0]}]")
    return ParsedMessage(text=text, speech=speech, move=Move(kind=kind, arguments=tuple(arguments)))
