"""What makes a family its own, read off the code that runs, so that a label cannot claim a difference.

A family is a proposal rule, an acceptance rule and a wording taken together. Rules are named after the functions
that a negotiator would really call; an inherited rule therefore bears the name of the class that wrote it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FamilyRules:
    """The identity of a family's rules: two function names, and every sentence that it can say."""

    proposal: str
    acceptance: str
    sentences: frozenset[str]

    @property
    def wording(self) -> str:
        """A digest of the sentences, the same for the same sentences in any order."""
        return hashlib.sha256("\n".join(sorted(self.sentences)).encode()).hexdigest()[:16]

    def shared_with(self, other: FamilyRules) -> list[str]:
        """What two families have in common, in words; empty for families that are strangers."""
        shared = [f"proposal rule {self.proposal}"] if self.proposal == other.proposal else []
        shared += [f"acceptance rule {self.acceptance}"] if self.acceptance == other.acceptance else []
        return shared + [f"sentence {sentence!r}" for sentence in sorted(self.sentences & other.sentences)]


def family_rules(*, proposal: Callable[..., Any], acceptance: Callable[..., Any], wording: object) -> FamilyRules:
    """The rules of a negotiator: its two functions, looked up on its class, and its wording.

    ``wording`` is a dataclass whose fields are all sequences of sentences. Raises TypeError for another field,
    which would leave sentences out of the comparison.
    """
    sentences: set[str] = set()
    for field, lines in vars(wording).items():
        if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
            raise TypeError(f"{type(wording).__name__}.{field} is {lines!r}, must be a list or tuple of sentences")
        sentences.update(lines)
    return FamilyRules(_name(proposal), _name(acceptance), frozenset(sentences))


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
