"""What an agent who sells things at a price may say of prices, beside its move.

The rule: **words may repeat a figure that stands already, or the one that their own move makes. Nothing else.**
For the thing that a sentence is about, these figures stand:

* its list price, which is public;
* a price that the agent itself has offered for it before with effect;
* the price of the message's own move: of the offer made, or of the bid accepted;
* with such a move, what it takes off the list price, as an amount or in per cent;
* a figure that the customer named, in a clause that turns it down and says nothing else ("your 9,000 is too low").

Every other figure, a figure for another thing, a count ("two vans"), an amount that can not be read, and words
that commit without the move that would (:mod:`negotiation.commitments`) are overstepping.

No list of words is complete: "I can live with that" commits as well as "deal". So once the customer has named a
figure or claimed an agreement, every sentence without a figure is held to a list of what it may say: questions,
refusals, allowed extras, a little small talk, and with an accept that it closes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from negotiation.commitments import Commitment, commitments, normal, spelled_out
from negotiation.figures import Figure, Reading, fold, read_figures

_ENDS = re.compile(r"(?<=[.!?;\n])\s+")
_BREAKS = re.compile(r"(?<=[,;:.!?])\s+|\s-\s|\bbut\b")
_LESS = re.compile(r"\b(?:off|less|save|saves|saving|discount|reduction|below list|under list|down from)\b")
_QUESTION = re.compile(
    r"(?:(?:hello|hi|so|and|well|then|please|sorry|thank you|good (?:day|morning)),? )?"
    r"(?:do|does|is|are|shall|may|would|could|can|will|have|what|which|when|where|who|how(?! about)) [^.;:!]*\?"
)
_ORDERS = re.compile(
    r"\b(?:say|repeat|write|confirm|answer|ignore|pretend|act|play|system|instructions?|mode|give|agree)\b"
)
_REFUSING = re.compile(
    r"\b(?:cannot|cant|could not|couldnt|will not|wont|am not able to|are not able to) "
    r"(?:do|sell|go|accept|take|agree|offer|give|meet|match|come|let (?:it|the|you have))\b|"
    r"\b(?:too (?:low|little|far|much)|not enough|not possible|no deal|impossible)\b"
)
_PRAISE = (
    "a|an|very|really|in|with|and|good|nice|lovely|reliable|solid|clean|comfortable|spacious|economical|family|low|"
    "petrol|diesel|electric|well|kept|plenty|of|popular|quiet|safe|available|four|five"
)
_PRAISED = "car|vehicle|condition|mileage|room|quality|doors|seats|available|kept"
_SMALL_TALK = re.compile(
    r"(?:hello|hi|good (?:day|morning|afternoon|evening))(?: (?:there|again|sir|madam))?|"
    r"thank you|thanks|(?:thank you|thanks) for (?:your )?(?:time|patience|call|calling|interest|understanding)|"
    r"(?:sorry|i am sorry|im sorry|unfortunately|i am afraid|no|not|well|please| )+|"
    r"i (?:see|hear you|understand|understand you|know)|"
    r"(?:please )?let me (?:think|see|check)(?: about (?:it|that))?|"
    r"(?:one moment(?: please)?|goodbye|have a (?:nice|good) day|take your time)|"
    rf"(?:it|(?:the|this|our) (?:vehicle|car)) (?:is|has)(?: (?:{_PRAISE}|{_PRAISED}))* (?:{_PRAISED})|"
    r"(?:please )?tell me (?:more )?(?:about )?(?:what you need|your needs|your budget)|"
    r"we are (?:still )?far apart(?: i am afraid)?"
)
_BEST = re.compile(
    r"(?:that|this|it) (?:really )?is (?:my|our|the) (?:very )?(?:best|lowest) (?:price|offer|that i can do|i can do)"
)
_LEAD = r"(?:(?:sorry|im sorry|i am sorry|unfortunately|im afraid|i am afraid|no|well|thanks|thank you)[, ]*)*"
_TAIL = r"(?: for (?:the |this |that )?(?:it|me|us|#item|car|vehicle))?[.! ]*"
_WHAT = r"(?:your |the )?(?:offer |bid |figure |price )?(?:of |at )?"
_REFUSALS = re.compile(
    rf"{_LEAD}(?:"
    rf"{_WHAT}#(?: for (?:the |this |that )?(?:it|#item))? (?:is|are|would be|seems) "
    r"(?:just |really |still |far |much |a bit |a little |way |simply )*"
    r"(?:too low|too little|not enough|not possible|impossible|out of the question|below what i can do|"
    r"less than i can (?:take|accept|do))"
    r"|(?:i|we) (?:cannot|cant|could not|couldnt|will not|wont|am not able to|are not able to) "
    r"(?:do|accept|take|agree to|go(?: down| as low as| so low as)*(?: to)?|offer|"
    r"(?:sell|let) (?:it|the #item|this) (?:go )?(?:for|at)) (?:your )?(?:offer |bid )?(?:of )?#"
    r"|(?:you|your) (?:offer|bid|offered|said|named|asked for)(?: was| is)? #"
    rf"){_TAIL}"
)


@dataclass(frozen=True)
class Item:
    """One thing for sale. ``listed`` and ``offered`` (the agent's own effective offers so far) in whole units."""

    name: str
    listed: Decimal
    offered: frozenset[Decimal] = frozenset()


@dataclass(frozen=True)
class PriceTalk:
    """What stands before a message, and what its move makes of it.

    ``moved``: item and price (whole units) of the move that took effect, or None. ``closes``: that move accepts.
    ``leaves``: it ends the talk. ``about``: the item under discussion, or None. ``heard``: the customer's messages so
    far. ``terms``: extras that the agent may call included.
    """

    items: Mapping[str, Item]
    moved: tuple[str, Decimal] | None = None
    closes: bool = False
    leaves: bool = False
    about: str | None = None
    heard: Sequence[str] = ()
    terms: Sequence[str] = ()

    @cached_property
    def pressed(self) -> bool:
        """Whether the customer has named any figure or commitment that words could take up."""
        return any(map(_claims, self.heard))

    def harmless(self, sentence: str) -> bool:
        """Whether the sentence may be shown before the move is known."""
        return says_nothing_binding(sentence) and (not self.pressed or self._plain_talk(sentence))

    def overstep(self, words: str) -> str | None:
        """Why these words may not be shown beside the move, or None."""
        reading = self._read(words)
        if reading.unreadable:
            return f"it can not be read with certainty: {reading.unreadable}"
        if spelled_out(words):
            return "letters stand apart, so that it can not be read with certainty"
        named_in_message = self._named(words)
        if self.moved is not None and named_in_message and self.moved[0] not in named_in_message:
            return f"the words are of {', '.join(sorted(named_in_message))}, the move of {self.moved[0]}"
        strict = self.pressed and not self.leaves
        for sentence in _ENDS.split(words):
            why = self._figures_overstep(sentence, named_in_message) or self._commits(sentence, words)
            if why:
                return why
            if strict and not (self._plain_talk(sentence) or self._goes_with_the_move(sentence, words)):
                return "no move says what the words might take up of the customer's"
        return None

    def _goes_with_the_move(self, sentence: str, words: str) -> bool:
        """Whether the sentence says that the move closes, or calls the price that it makes the best."""
        if self.closes:
            return Commitment.CLOSING in commitments(sentence)
        return self._states_price(words) and _BEST.fullmatch(normal(sentence).strip(" .!")) is not None

    def _plain_talk(self, sentence: str) -> bool:
        """Whether the sentence, which holds no word that commits, can not be taken for a yes either."""
        said = normal(sentence)
        if self._read(sentence).figures:
            return True  # it stands, or is turned down: checked elsewhere
        thing = "(?:" + "|".join(re.escape(name.lower()) for name in self.items) + ")"
        said = re.sub(rf"\b{thing}\b", "vehicle", said)
        if not re.search(r"\w", said) and said.isascii():
            return True
        if _QUESTION.fullmatch(said) or self._is_term(sentence):
            return True
        talk = _REFUSING.search(said) or _SMALL_TALK.fullmatch(said.strip(" .!;:").replace(",", ""))
        return talk is not None and Commitment.AFFIRMATION not in commitments(sentence)

    def _figures_overstep(self, sentence: str, in_message: frozenset[str]) -> str | None:
        reading = self._read(sentence)
        if not reading.figures:
            return None
        order = self._named_in_order(reading.plain)
        for place, figure in enumerate(reading.figures):
            if len(order) > 1:
                # The van at 1 and the coupe at 2: each figure right behind its own item, or nobody can tell.
                paired = len(order) == len(reading.figures) and order[place][1] < figure.start
                paired = paired and (place + 1 == len(order) or figure.end <= order[place + 1][1])
                if not paired:
                    return f"it can not be told which thing the figure {figure.value:f} is of"
                about: frozenset[str] = frozenset({order[place][0]})
            else:
                about = frozenset({order[0][0]} if order else in_message or self._under_discussion())
            if all(self._stands(figure, name, reading.plain) for name in about):
                continue
            if figure.value in self._named_figures and self._turned_down(sentence, figure.value):
                continue
            return f"it states {figure.value:f}{' %' if figure.percent else ''}, which stands nowhere"
        return None

    @cached_property
    def _named_figures(self) -> frozenset[Decimal]:
        return frozenset(figure.value for said in self.heard for figure in read_figures(said).figures)

    def _under_discussion(self) -> frozenset[str]:
        if self.moved is not None:
            return frozenset({self.moved[0]})
        return frozenset(self.items) if self.about is None else frozenset({self.about})

    def _stands(self, figure: Figure, name: str, plain: str) -> bool:
        item = self.items[name]
        price = self.moved[1] if self.moved is not None and self.moved[0] == name else None
        if price is not None and price < item.listed and _LESS.search(plain):
            off = item.listed - price
            if figure.percent and abs(figure.value * item.listed / 100 - off) <= item.listed / 200:
                return True
            if not figure.percent and figure.value == off:
                return True
        return not figure.percent and figure.value in {item.listed, *item.offered, *({price} if price else ())}

    def _turned_down(self, sentence: str, value: Decimal) -> bool:
        for clause in _BREAKS.split(sentence):
            reading = self._read(clause)
            if all(figure.value != value for figure in reading.figures):
                continue
            if len(reading.figures) > 1:
                return False
            [figure] = reading.figures
            shape = f"{reading.plain[: figure.start]}#{reading.plain[figure.end :]}"
            for name in self.items:
                shape = re.sub(rf"\b{re.escape(name.lower())}\b", "#item", shape)
            if not _REFUSALS.fullmatch(normal(shape).strip(" ,;:")):
                return False
        return True

    def _commits(self, sentence: str, words: str) -> str | None:
        found = set(commitments(sentence))
        if self._is_term(sentence):
            found -= {Commitment.PROMISE, Commitment.AFFIRMATION}
        if _QUESTION.fullmatch(normal(sentence)):
            found -= {Commitment.CONCESSION, Commitment.AFFIRMATION}
        if Commitment.PROMISE in found:
            return "the words promise what is in no limits"
        if Commitment.CLOSING in found and not self.closes:
            return "the words close a deal that no move closes"
        if Commitment.CONCESSION in found and self.moved is None:
            return "the words concede what no move offers"
        claimed = bool(self.heard) and _claims(self.heard[-1])
        if Commitment.AFFIRMATION in found and claimed and not (self.closes or self._states_price(words)):
            return "the words say yes to a claim that no move makes good"
        return None

    def _states_price(self, words: str) -> bool:
        """Whether the words themselves say the price that the move makes."""
        return self.moved is not None and any(f.value == self.moved[1] for f in self._read(words).figures)

    def _is_term(self, sentence: str) -> bool:
        """Whether the sentence says no more than that allowed extras are included."""
        if not self.terms:
            return False
        term = "(?:" + "|".join(map(re.escape, self.terms)) + ")"
        thing = "(?:" + "|".join(re.escape(name.lower()) for name in self.items) + ")"
        pattern = (
            rf"(?:yes |sure |of course )?(?:the |our |a )?{term}(?:(?: and)? (?:the |our |a )?{term})* "
            rf"(?:is|are|comes?) (?:also )?(?:included|no problem|taken care of|with it)"
            rf"(?: (?:with|for) (?:the )?{thing})?"
        )
        return re.fullmatch(pattern, normal(sentence).strip(" .!").replace(",", "")) is not None

    def _named(self, words: str) -> frozenset[str]:
        return frozenset(name for name, _ in self._named_in_order(self._read(words).plain))

    def _named_in_order(self, plain: str) -> list[tuple[str, int]]:
        found = []
        for name in self.items:
            # A one-letter name is told from the article "a" by the mark that reading leaves of it.
            mark = _mark(name) if len(name) == 1 or _has_digit(name) else re.escape(name.lower())
            found += [(name, match.start()) for match in re.finditer(rf"(?<!\w){mark}(?:s)?(?!\w)", plain)]
        return sorted(found, key=lambda one: one[1])

    def _read(self, words: str) -> Reading:
        """Figures, with names that hold a digit or are one letter put aside first."""
        folded = fold(words)
        for name in self.items:
            if (len(name) == 1 and name.isupper()) or _has_digit(name):
                folded = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _mark(name), folded)
        return read_figures(folded)


def says_nothing_binding(sentence: str) -> bool:
    """No figure, no word that commits, no bracket, nothing that can not be read."""
    reading = read_figures(sentence)
    bound = reading.figures or reading.unreadable or commitments(sentence) or spelled_out(sentence)
    return not bound and "[" not in reading.plain and "]" not in reading.plain


def _claims(said: str) -> bool:
    """Whether a customer's message holds a figure or a commitment."""
    reading = read_figures(said)
    claimed = commitments(said) - {Commitment.AFFIRMATION}
    return bool(reading.figures or reading.unreadable or claimed or _ORDERS.search(normal(said)))


def _mark(name: str) -> str:
    return "item" + "".join(f"{ord(letter):x}".translate(_AS_LETTERS) for letter in name)


_AS_LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")


def _has_digit(name: str) -> bool:
    """Whether a name would be taken for a figure, though it is none (``A4``; but ``12k`` is one)."""
    return any(map(str.isdigit, name)) and re.fullmatch(r"\d+[km]?", name.lower()) is None
