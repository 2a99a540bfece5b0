"""Personal data is taken out of events before they leave serving, and its kind left in its place: ``[email]``.

What is looked for: e-mail addresses (also written out, "at", "dot"), telephone numbers, payment cards (Luhn), IBANs,
street addresses in English, German, French and Spanish, British postcodes, and whatever the business told of its
customer. Written with zero-width characters or digits of another script they are found as well. Structured moves and
prices are left alone: a negotiation without its figures teaches nothing. The cost: a telephone number written as
nothing but groups of four to eight digits, none of which begins with 0, reads like prices in a row and stays.

Left out on purpose: names that the business did not tell (guessing them without a language model hits vehicles and
towns), and the conversation's own checkpoint, where the customer's words stay as they were until they are erased.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import phonenumbers
from pydantic import BaseModel, ConfigDict, Field
from stdnum import iban, luhn

from negotiation.events import ConversationEvent, Message, Offer, Opened, OutcomeReported

Kind = Literal["email", "phone", "card", "iban", "address", "name", "customer"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_EMAIL = re.compile(r"[\w.+%-]+\s?@\s?[\w-]+(?:\.[\w-]+)+")
_SPELLED_EMAIL = re.compile(
    r"\b[\w.+-]+\s?(?:\(at\)|\[at\]|\bat\b)\s?[\w-]+(?:\s?(?:\(dot\)|\[dot\]|\bdot\b)\s?\w{2,})+", re.IGNORECASE
)
_INTERNATIONAL = re.compile(r"(?:\+|(?<![\d.,])00)[1-9](?:[\s().-]{0,2}\d){7,14}\b")
_CARD = re.compile(r"(?<![\d.,])\d(?:[ .-]?\d){12,18}(?!\d)")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}\b", re.IGNORECASE)
_TAIL = r"(?:,?\s+\d{4,5}\s+[^\W\d_]+)?"
_ADDRESSES = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (r"\b\d{1,5}[a-z]?\s+(?:(?!off\b)[^\W\d_][\w'-]*\s+){1,3}(?:street|avenue|road|lane|boulevard)\b", re.I),
        (
            r"\b\d{1,5}[a-z]?\s+(?:[A-Z][\w'-]+\s+){1,3}(?:St|Ave|Rd|Ln|Dr|Drive|Blvd|Court|Ct|Square|Way|Place|Pl)\b",
            0,
        ),
        (r"\b[^\W\d_][\w-]*(?:straße|strasse|str\.|gasse|allee|platz|weg)\s+\d{1,4}\s?[a-z]?\b" + _TAIL, re.I),
        (
            r"\b\d{1,4}(?:\s?(?:bis|ter))?,?\s+(?:rue|avenue|boulevard|chemin|impasse|allée|place)\s+"
            r"(?:(?:de\s+la|de|du|des)\s+|l')?[^\W\d_][\w'-]*(?:\s+[A-Z][\w'-]*)*" + _TAIL,
            re.I,
        ),
        (
            r"\b(?:calle|avenida|avda\.?|paseo|plaza)\s+[^\W\d_][\w'-]*(?:\s+[\w'-]+){0,3}?,?\s+(?:n[ºo°]\s*)?\d{1,4}\b",
            re.I,
        ),
        (r"\b[A-Z]{1,2}\d[A-Z\d]?\s?(?!\d(?:WD|WH|WS))\d[A-Z]{2}\b", 0),
    )
)
_MOVE = re.compile(r"\[[^\[\]]*\]")
_PLAIN_GROUPS = re.compile(r"[1-9]\d{3,7}(?:\s+[1-9]\d{3,7})+")
_CENTS = re.compile(r"(?<!\d)\d+\.\d{2}(?!\d)")
_CURRENCY = re.compile(r"[$€£]\s?[\d.,]*$")
_LEAST_NAME_LETTERS = 3
_FIELDS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("email", ("mail",)),
    ("phone", ("phone", "tel", "mobile")),
    ("iban", ("iban",)),
    ("card", ("card",)),
    ("address", ("address", "street", "city", "post")),
    ("name", ("name",)),
)


class RedactionSettings(BaseModel):
    """What is taken out of events."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(True, description="Off only where the business may keep, and train on, personal data.")
    kinds: tuple[Kind, ...] = Field(KINDS, description="Which kinds of personal data are taken out.")
    phone_region: str = Field(
        "US", pattern=r"^[A-Z]{2}$", description="Where telephone numbers without a country code are from."
    )


@dataclass(frozen=True)
class _Found:
    start: int
    end: int
    kind: Kind


class Redactor:
    """Pure: the same text, the same result. ``customer``: what the business told of its customer, by field."""

    def __init__(self, settings: RedactionSettings | None = None) -> None:
        self._settings = settings or RedactionSettings()

    def event(self, event: ConversationEvent, customer: Mapping[str, str]) -> ConversationEvent:
        """The event without personal data. A message that lost some has no token ids any more: they would tell."""
        if not self._settings.enabled:
            return event
        payload = event.payload
        if isinstance(payload, Message):
            text, kinds = self.text(payload.text, customer)
            same = payload.shown == payload.text
            shown, more = (text, kinds) if same else self.text(payload.shown, customer)
            if not (kinds | more):
                return event
            gone: dict[str, Any] = {"token_ids": (), "logprobs": (), "redacted": tuple(sorted(kinds | more))}
            payload = payload.model_copy(update={"text": text, "shown": shown, **gone})
        elif isinstance(payload, Offer):
            payload = payload.model_copy(update={"approval_note": self.text(payload.approval_note, customer)[0]})
        elif isinstance(payload, OutcomeReported):
            view = self._values(payload.counterpart_view, customer)
            payload = payload.model_copy(
                update={"note": self.text(payload.note, customer)[0], "counterpart_view": view}
            )
        elif isinstance(payload, Opened):
            context = payload.context
            changes = {name: self._values(getattr(context, name), customer) for name in ("public", "views")}
            payload = payload.model_copy(
                update={
                    "context": context.model_copy(update=changes),
                    "labels": self._values(payload.labels, customer),
                }
            )
        return event.model_copy(update={"payload": payload})

    def text(self, text: str, customer: Mapping[str, str]) -> tuple[str, set[Kind]]:
        """The text with tags for what was found, and the kinds of it."""
        plain, places = _plain(text)
        wanted = set(self._settings.kinds)
        found = sorted(
            (one for one in self._find(plain, customer) if one.kind in wanted), key=lambda one: (one.start, -one.end)
        )
        parts, done, kinds = [], 0, set[Kind]()
        for one in found:
            start, end = places[one.start], places[one.end - 1] + 1
            if start < done:
                continue
            parts += [text[done:start], f"[{one.kind}]"]
            done = end
            kinds.add(one.kind)
        return "".join([*parts, text[done:]]), kinds

    def _values(self, value: Any, customer: Mapping[str, str]) -> Any:
        if isinstance(value, str):
            return self.text(value, customer)[0]
        if isinstance(value, Mapping):
            return {name: self._values(inner, customer) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._values(inner, customer) for inner in value)
        return value

    def _find(self, text: str, customer: Mapping[str, str]) -> Iterator[_Found]:
        for pattern in (_EMAIL, _SPELLED_EMAIL):
            yield from (_Found(*match.span(), "email") for match in pattern.finditer(text))
        yield from _ibans(text)
        moves = [match.span() for match in _MOVE.finditer(text)]
        for one in (*self._numbers(text), *_addresses(text), *_told(text, customer)):
            if not any(start <= one.start and one.end <= end for start, end in moves):
                yield one

    def _numbers(self, text: str) -> Iterator[_Found]:
        for match in _CARD.finditer(text):
            if luhn.is_valid(re.sub(r"\D", "", match[0])):
                yield _Found(*match.span(), "card")
        yield from (_Found(*match.span(), "phone") for match in _INTERNATIONAL.finditer(text))
        region = self._settings.phone_region
        for number in phonenumbers.PhoneNumberMatcher(text, region, phonenumbers.Leniency.POSSIBLE):
            raw = number.raw_string
            # Two prices in a row look like a number in groups; a price alone is shorter than any number here.
            amounts = _CURRENCY.search(text[: number.start]) or _PLAIN_GROUPS.fullmatch(raw) or _CENTS.search(raw)
            if sum(letter.isdigit() for letter in raw) >= 9 and not amounts:
                yield _Found(number.start, number.end, "phone")


def _plain(text: str) -> tuple[str, list[int]]:
    """The text in compatibility form without invisible characters, and where each of its letters came from."""
    letters, places = [], []
    for place, letter in enumerate(text):
        if unicodedata.category(letter) == "Cf":
            continue
        digit = unicodedata.digit(letter, None)
        for plain in str(digit) if digit is not None else unicodedata.normalize("NFKC", letter):
            letters.append(plain)
            places.append(place)
    return "".join(letters), places


def _ibans(text: str) -> Iterator[_Found]:
    for match in _IBAN.finditer(text):
        for end in range(match.end(), match.start() + 14, -1):
            # The pattern may have run on into the words behind it.
            if iban.is_valid(text[match.start() : end]):
                yield _Found(match.start(), end, "iban")
                break


def _addresses(text: str) -> Iterator[_Found]:
    for pattern in _ADDRESSES:
        yield from (_Found(*match.span(), "address") for match in pattern.finditer(text))


def _told(text: str, customer: Mapping[str, str]) -> Iterator[_Found]:
    for field, value in customer.items():
        value = _plain(value)[0].strip()
        kind = _kind_of(field)
        wanted = [value] if len(value) >= _LEAST_NAME_LETTERS else []
        if kind == "name":
            wanted += [part for part in re.split(r"[\s,.-]+", value) if len(part) >= _LEAST_NAME_LETTERS]
        for words in wanted:
            spaced = r"[\s.-]*".join(re.escape(part) for part in re.split(r"[\s.-]+", words) if part)
            for match in re.finditer(rf"(?<!\w){spaced}(?!\w)", text, re.IGNORECASE):
                yield _Found(*match.span(), kind)


def _kind_of(field: str) -> Kind:
    name = field.lower()
    for kind, parts in _FIELDS:
        if any(part in name for part in parts):
            return kind
    return "customer"
