"""Reads amounts out of free text, however they are spelled: what a customer would read, the guard must read too.

``12,000``, ``12.000``, ``12 000``, ``12k``, ``twelve thousand``, full-width and other Unicode digits, digits with
invisible characters between them, Roman numerals, ``half price``, ``a dollar``, ``15 %`` all become figures. Text
that can not be read with certainty (another script, digits glued to letters, an amount of money without a number)
is reported as such, so that a caller can refuse it: this module fails closed.

Left out on purpose: number words of languages other than English, and telling prices from other counts. A caller
that knows which figures may be said needs neither.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal

_LETTER_NAME = re.compile(r"(?:LATIN|SYMBOL).* LETTER (?:DOTLESS )?(?:SMALL CAPITAL )?([A-Z]{1,2})\b")
_LOOKALIKES = {
    ord(one): other
    for strange, latin in (
        ("АВЕЅІЈКМНОРСТУХавеѕіјкмнорстухԁԛԝһցҮү", "ABESIJKMHOPCTYXabesijkmhopctyxdqwhgYy"),
        ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧαβεικνορτυχօՕ", "ABEZHIKMNOPTYXabeiknoptuxoO"),
        ("\u2010\u2011\u2012\u2013\u2014\u2212", "------"),
        ("\u2019\u2018\u02bc\u00b4`", "'''''"),
        ("\u060c\u066c\u066b\u2044\u2215", ",,.//"),
    )
    for one, other in zip(strange, latin, strict=True)
}
_SYMBOLS = {
    "🤝": " deal ",
    "🆓": " free ",
    "🔟": " 10 ",
    "👍": " yes ",
    "👌": " okay ",
    "✅": " yes ",
    "🆗": " okay ",
}
_INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0\u2800\u180e")

_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_SPELLED = f"zero one two three four five six seven eight nine {_TEENS}"
_SPELLED_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
UNITS = {word: value for value, word in enumerate(_SPELLED.split())}
UNITS |= {"nought": 0, "naught": 0, "nil": 0, "dozen": 12, "fourty": 40}
TENS = {word: 10 * value for value, word in enumerate(_SPELLED_TENS.split(), start=2)}
SCALES = {"hundred": 100, "thousand": 1000, "grand": 1000, "million": 10**6, "billion": 10**9}
SCALES |= {f"{word}s": value for word, value in SCALES.items()} | {"k": 1000, "m": 10**6, "mio": 10**6, "mn": 10**6}
_SMALL = "cents?|penn(?:y|ies)|pence|pfennigs?|dimes?|nickels?"
_MAIN = r"dollars?|usd|bucks?|euros?|eur|pounds?|gbp|quid|francs?|chf"
_ODD = (
    "yen|yuan|rmb|jpy|cny|pesos?|rupees?|inr|rubles?|roubles?|liras?|bitcoins?|btc|satoshis?|kronor|kroner|"
    "zlotys?|coins?|tokens?|eth|reais|dinars?|shillings?"
)
_SIGNS = r"$€£"
_WORD = "|".join(sorted((*UNITS, *TENS), key=len, reverse=True))
_SCALE = "|".join(sorted(SCALES, key=len, reverse=True))
_LONG_SCALE = "|".join(sorted((word for word in SCALES if len(word) > 3), key=len, reverse=True))
_DIGITS = r"\d{1,3}(?:(?P<by>[.,' _])\d{3}(?:(?P=by)\d{3})*)(?:[.,]\d{1,2})?(?!\d)|\d+(?:[.,]\d+)?"
_WORDS = rf"(?:(?:{_WORD}|{_LONG_SCALE})(?:\W{{1,3}}(?:and\W+|a\W+)?(?={_WORD}|{_LONG_SCALE})|\b))+"
_FIGURE = re.compile(
    rf"(?P<sign>[{_SIGNS}]\s?)?(?P<minus>(?<![\w-])-)?"
    rf"(?:(?P<digits>{_DIGITS})|\b(?P<words>{_WORDS})|"
    rf"\b(?P<article>an?|half an?|quarter of an?)\s(?=(?:{_MAIN}|{_SMALL}|{_ODD}|{_LONG_SCALE})\b))"
    rf"(?:\s?(?P<scale>{_SCALE})\b)?"
    rf"(?:\s?(?P<percent>%|‰|per\s?cent\b|percentage|pct\b)|\s?(?P<small>{_SMALL})\b|"
    rf"\s?(?P<main>[{_SIGNS}]|(?:{_MAIN})\b)|\s?(?P<odd>(?:{_ODD})\b))?"
)
_HALF = re.compile(
    r"\b(?:half|quarter|third)\s?-?\s?(?:of\s)?(?:the\s|that\s|your\s|its\s|my\s|list\s)*"
    r"(?:price|off|cost|money|sum)\b"
)
_MONEY = re.compile(rf"[{_SIGNS}¥₹₽₿¢₩]|\b(?:{_MAIN}|{_SMALL}|{_ODD})\b")
_ROMAN = re.compile(r"\b(?=[MDCLXVI]{2})M{0,4}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})\b")
_ROMAN_ONE = re.compile(rf"\b(?:for|at|to|is)\s([IVXLCDM])(?=\s?(?:[{_SIGNS}]|$|[.!]|(?i:{_MAIN})\b))")
_BARE_ONE = re.compile(r"\b(?:for|at|to|price is|costs?|pay|pays|only|just)\sone(?=\s*(?:$|[.!,;)]))")
_OTHER_TONGUES = re.compile(
    r"\w*(?:tausend|hundert|duizend|honderd|mille\b|millones|cientos|\bmil\b|trillion|crore|lakh)\w*"
)
_COUNTED = re.compile(r"\s(?:doors?|seats?|wheels?|gears?|airbags?|questions?|minutes?|options?|choices?|steps?)\b")


@dataclass(frozen=True)
class Figure:
    """One amount as read. ``value`` in whole units (cents are hundredths), or per cent where ``percent``."""

    value: Decimal
    start: int
    end: int
    percent: bool = False


@dataclass(frozen=True)
class Reading:
    """A text with the figures found in it. ``plain`` is what their positions refer to; ``unreadable`` why not."""

    plain: str
    figures: tuple[Figure, ...] = ()
    unreadable: str | None = None


def fold(text: str) -> str:
    """The text as it looks: compatibility forms, invisible characters and look-alike letters undone. Keeps case."""
    for symbol, word in _SYMBOLS.items():
        text = text.replace(symbol, f" {word} ")
    text = unicodedata.normalize("NFKD", text).translate(_LOOKALIKES)
    return " ".join("".join(map(_fold_character, text)).split())


def read_figures(text: str) -> Reading:
    """The figures of a text in order."""
    folded = fold(text)
    found = [_roman(match) for match in _ROMAN.finditer(folded) if match[0]]
    found += [Figure(Decimal(1), *match.span(1)) for match in _ROMAN_ONE.finditer(folded)]
    plain = folded.lower()
    unreadable = _unreadable(folded)
    for match in _FIGURE.finditer(plain):
        bare = not (match["scale"] or match["percent"] or _unit(match))
        if bare and match["words"] in ("one", "grand"):
            continue
        if match["odd"]:
            unreadable = unreadable or f"an amount in {match['odd']}"
        if match["digits"] and _glued(plain, match):
            unreadable = unreadable or "digits glued to letters"
        value = _value(match)
        small = value == value.to_integral() and 0 < value <= 10
        if small and not _unit(match) and not match["percent"] and _COUNTED.match(plain, match.end()):
            continue
        found.append(Figure(value, match.start(), match.end(), percent=bool(match["percent"])))
    found += [Figure(Decimal(50), *match.span(), percent=True) for match in _HALF.finditer(plain)]
    found += [Figure(Decimal(1), *match.span()) for match in _BARE_ONE.finditer(plain)]
    for money in _MONEY.finditer(plain):
        if not any(figure.start <= money.start() < figure.end for figure in found):
            unreadable = unreadable or "money without a number"
    if _OTHER_TONGUES.search(plain):
        unreadable = unreadable or "a number in words that are not English"
    return Reading(plain, tuple(sorted(found, key=lambda figure: figure.start)), unreadable)


def _fold_character(character: str) -> str:
    if character.isascii():
        return character if character >= " " else " "
    category = unicodedata.category(character)
    if category in ("Cf", "Mn", "Me", "Cc") or character in _INVISIBLE:
        return ""
    if category.startswith("Z"):
        return " "
    numeric = unicodedata.numeric(character, None)
    if numeric is not None:
        return str(int(numeric)) if unicodedata.decimal(character, None) is not None else f" {numeric:g} "
    simple = character.casefold()
    if simple.isascii():
        return simple
    named = _LETTER_NAME.search(unicodedata.name(character, ""))
    return named[1].lower() if named else character


def _unreadable(folded: str) -> str | None:
    strange = next((c for c in folded if not c.isascii() and (c.isalpha() or unicodedata.category(c) == "Co")), None)
    if strange is not None:
        return f"a letter that is not Latin (U+{ord(strange):04X})"
    for word in folded.split():
        if len(word) > 40:
            return "a word of more than 40 characters"
        if len(word) >= 8 and re.search(r"[a-z][A-Z]+[a-z]\w*[A-Z]", word):
            return "a word in mixed case that looks encoded"
    return None


def _glued(plain: str, match: re.Match[str]) -> bool:
    before = plain[match.start() - 1] if match.start() else " "
    after = plain[match.end()] if match.end() < len(plain) else " "
    return (before.isalpha() and not match["sign"]) or after.isalnum()


def _unit(match: re.Match[str]) -> bool:
    return bool(match["main"] or match["small"] or match["odd"] or match["sign"])


def _roman(match: re.Match[str]) -> Figure:
    values = [{"M": 1000, "D": 500, "C": 100, "L": 50, "X": 10, "V": 5, "I": 1}[letter] for letter in match[0]]
    total = sum(-v if v < max(values[place:]) else v for place, v in enumerate(values))
    return Figure(Decimal(total), *match.span())


def _value(match: re.Match[str]) -> Decimal:
    if match["digits"]:
        value = _digits(match["digits"])
    elif match["words"]:
        value = Decimal(_spelled(re.findall(r"[a-z]+", match["words"])))
    else:
        value = Decimal({"h": "0.5", "q": "0.25"}.get(match["article"][0], "1"))
    if match["scale"]:
        value *= SCALES[match["scale"]]
    if match["small"]:
        value /= 100
    if match["percent"] == "‰":
        value /= 10
    return -value if match["minus"] else value


def _digits(written: str) -> Decimal:
    """``12,000`` and ``12.000`` are thousands, ``12,5`` and ``12.50`` are decimals."""
    grouped = re.fullmatch(r"(\d{1,3}(?:([.,' _])\d{3})(?:\2\d{3})*)(?:[.,](\d{1,2}))?", written)
    if grouped is None:
        return Decimal(written.replace(",", "."))
    return Decimal(re.sub(r"\D", "", grouped[1]) + (f".{grouped[3]}" if grouped[3] else ""))


def _spelled(words: list[str]) -> int:
    total = current = 0
    for word in words:
        if word in UNITS or word in TENS:
            current += UNITS.get(word, 0) + TENS.get(word, 0)
        elif word in SCALES and SCALES[word] == 100:
            current = max(current, 1) * 100
        elif word in SCALES:
            total, current = total + max(current, 1) * SCALES[word], 0
    return total + current
