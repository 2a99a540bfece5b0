"""Exercises for ``bench/lewis2017.py``, from which its model learns to read before it learns from people.

Lewis et al. 2017 decide on the split with a classifier of its own; here the split is text too, and a small language
model finds out only after very much of it that words stand for numbers. Three kinds of rows, easiest first: random
tokens to copy; wishes in words of our own, each answered with the split that it means; and short games in which only
the last of several wishes counts. Labels are on the statements alone: what to say is learned from people.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from negotiation.deal_or_no_deal import HIDDEN_STATEMENT, ITEMS, DealOrNoDeal, Pool, Split, remainder, splits
from negotiation.moves import Move
from negotiation.roles import Role
from negotiation.transcript import ChatFormat, Transcript
from training.supervised import IGNORED, Row

_SCENARIO = DealOrNoDeal()
_SEEDS = 90_000_000
_COPIED = 24
_WISHES, _GAMES = 8, 3
_NUMBERS = ("no", "one", "two", "three", "four", "five")
_SIMPLE_SHARE = 0.7
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

Saying = tuple[bool, str, bool]
"""Whether we say it, the words, and whether to learn them."""


def stated(share: Split) -> str:
    """A statement of a split as text: ``book 1 hat 0 ball 2 [select 1 0 2]``. Item by item it is easier to find."""
    words = " ".join(f"{item} {count}" for item, count in zip(ITEMS, share, strict=True))
    return f"{words} {Move(kind='select', arguments=tuple(map(str, share)))}"


def copy_row(vocabulary: int, seed: int) -> Row:
    """Random tokens, twice over; labels on the second half (Olsson et al. 2022)."""
    once = random.Random(f"copy:{seed}").choices(range(vocabulary), k=_COPIED)
    return once * 2, [IGNORED] * _COPIED + once


def wishes_row(chat: ChatFormat, seed: int) -> Row:
    """A prompt and several wishes of the other side, each answered with the share that it leaves or gives to us."""
    rng, counts, prompt = _deal("wishes", seed)
    return _row(chat, prompt, _wishes(counts, rng))


def games_row(chat: ChatFormat, seed: int) -> Row:
    """A prompt and several short games, each ended by an agreement to the last wish and by both statements."""
    rng, counts, prompt = _deal("games", seed)
    return _row(chat, prompt, _short_games(counts, rng))


def texts(count: int, seed: int) -> list[str]:
    """Prompts and words of the exercises, for the tokenizer to learn from."""
    found: list[str] = []
    for number in range(count):
        rng, counts, prompt = _deal("games", seed + number)
        found += [prompt, *(words for _, words, _ in _short_games(counts, rng))]
    return found


def _deal(kind: str, seed: int) -> tuple[random.Random, Split, str]:
    context = _SCENARIO.generate(_SEEDS + seed)
    counts = Pool.model_validate(context.public).counts
    return random.Random(f"{kind}:{seed}"), counts, _SCENARIO.system_prompt(Role.AGENT, context)


def _wishes(counts: Split, rng: random.Random) -> list[Saying]:
    said: list[Saying] = []
    for _ in range(_WISHES):
        share = rng.choice(list(splits(counts)))
        ours = remainder(counts, share)
        if rng.random() >= _SIMPLE_SHARE:
            words = rng.choice(_ASK).format(mine=_in_words(share, counts, rng), theirs=_in_words(ours, counts, rng))
        elif rng.random() < 0.5:
            words = f"i want {_in_words(share, counts, rng)}"
        else:
            words = f"you get {_in_words(ours, counts, rng)}"
        said += [(False, words, False), (True, stated(ours), True)]
    return said


def _short_games(counts: Split, rng: random.Random) -> list[Saying]:
    said: list[Saying] = []
    own = rng.random() < 0.5
    for _ in range(_GAMES):
        ours: Split = counts
        for turn in range(rng.choice((1, 1, 2, 3))):
            share = rng.choice(list(splits(counts)))
            rest = remainder(counts, share)
            words = rng.choice(_ASK).format(mine=_in_words(share, counts, rng), theirs=_in_words(rest, counts, rng))
            said.append((own, (rng.choice(_REFUSE) if turn else "") + words, False))
            ours = share if own else rest
            own = not own
        said += [(own, rng.choice(_TAKE), False), (not own, "[agree]", False)]
        for speaker in (own, not own):
            said.append((speaker, stated(ours), True) if speaker else (speaker, HIDDEN_STATEMENT, False))
    return said


def _row(chat: ChatFormat, prompt: str, said: Sequence[Saying]) -> Row:
    transcript, labels = Transcript(chat, prompt), list[int]()
    for own, words, learned in said:
        if not own:
            transcript.hear(words)
            continue
        if not transcript.ids:
            transcript.open()
        labels += [IGNORED] * (len(transcript.ids) - len(labels))
        ids = [*chat.tokenizer.encode(words, add_special_tokens=False), chat.end_of_turn_id]
        transcript.speak(ids, [0.0] * len(ids))
        labels += ids if learned else [IGNORED] * len(ids)
    return transcript.ids, labels + [IGNORED] * (len(transcript.ids) - len(labels))


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
