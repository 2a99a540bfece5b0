"""Scripted games in plain words for ``bench/lewis2017.py``: from these its model first learns to read a split.

Two rule-followers ask for shares in words of our own making, in the shape that the human dialogues have (no proposals
in brackets), until one takes what is left to it or both give up. What is said and what is stated always agree, which
is what people's dialogues alone teach only slowly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from negotiation.deal_or_no_deal import ITEMS, DealOrNoDeal, Pool, Split, Values, remainder, splits, worth
from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.scenario import Context
from training.recorded import Recorded

_SCENARIO = DealOrNoDeal()
_SEEDS = 50_000_000
_NUMBERS = ("no", "one", "two", "three", "four", "five")
_ASK = (
    "i would like {mine}",
    "i want {mine} , you can have the rest",
    "can i have {mine} ?",
    "you can have {theirs}",
    "i will take {mine} and you get {theirs}",
    "how about {theirs} for you and the rest for me ?",
    "give me {mine} and we have a deal",
    "i need {mine} .",
    "i keep {mine} , you take {theirs} .",
)
_REFUSE = ("no , ", "sorry , ", "that does not work . ", "hmm . ", "")
_TAKE = ("deal", "ok deal", "sure", "that works for me .", "fine , deal", "ok")
_GIVE_UP = ("then there is no deal", "no deal")
_LONGEST = 10


def scripted_games(count: int, seed: int) -> Iterator[Recorded]:
    """``count`` games; the same seed gives the same games. About one in ten ends without a deal."""
    for index in range(count):
        number = seed * 1_000_000 + index
        yield _game(_SCENARIO.generate(_SEEDS + number), random.Random(f"plain words:{number}"))


def _game(context: Context, rng: random.Random) -> Recorded:
    counts = Pool.model_validate(context.public).counts
    values = {role: Values.model_validate(context.views[role]).values for role in Role}
    least = {role: rng.choice((3, 4, 5, 6)) for role in Role}
    speaker, state = context.first_speaker, _SCENARIO.begin(context)
    offered: Split | None = None
    said = 0

    def say(text: str) -> None:
        nonlocal state, said
        state = _SCENARIO.advance(context, state, state.next_speaker, text)
        said += 1

    while True:
        speaker = state.next_speaker
        wanted = max(least[speaker], 9 - said)
        if offered is not None and worth(values[speaker], offered) >= wanted:
            say(rng.choice(_TAKE))
            agreed: dict[Role, str] = {
                speaker: _select(offered),
                speaker.other: _select(remainder(counts, offered)),
            }
            break
        if said >= _LONGEST:
            say(rng.choice(_GIVE_UP))
            agreed = dict.fromkeys(Role, "[select none]")
            break
        enough = [share for share in splits(counts) if worth(values[speaker], share) >= wanted]
        lowest = min(worth(values[speaker], share) for share in enough)
        share = rng.choice([one for one in enough if worth(values[speaker], one) <= lowest + 1])
        offered = remainder(counts, share)
        words = rng.choice(_ASK).format(mine=_in_words(share, counts, rng), theirs=_in_words(offered, counts, rng))
        say(("" if not said else rng.choice(_REFUSE)) + words)
    say("[agree]")
    for _ in Role:
        say(agreed[state.next_speaker])
    return Recorded(f"scripted {context.seed}", context, state.turns)


def _select(share: Split) -> str:
    return str(Move(kind="select", arguments=tuple(map(str, share))))


def _in_words(share: Split, counts: Split, rng: random.Random) -> str:
    """A share as people put it: "both balls and a hat", "everything", "2 books"."""
    if share == counts and rng.random() < 0.5:
        return "everything"
    parts = [_some(taken, count, item, rng) for taken, count, item in zip(share, counts, ITEMS, strict=True) if taken]
    rng.shuffle(parts)
    return " and ".join(parts) or "nothing"


def _some(taken: int, count: int, item: str, rng: random.Random) -> str:
    many = item + ("s" if taken > 1 else "")
    ways = [f"{taken} {many}", f"{_NUMBERS[taken]} {many}"]
    if taken == count:
        ways += [f"the {many}"] * 2 + ([f"all the {many}"] if taken > 1 else [])
        ways += [f"both {many}"] if taken == 2 else []
    elif taken == 1:
        ways.append(f"a {item}")
    return rng.choice(ways)
