"""Finds words that commit: closing a deal, promising, conceding, saying yes. English, with the best known traps.

Words commit nobody here; only a structured move does. That is why words that sound as if they did must not be
shown unless a move says the same. Three strengths, by what may stand beside them:

* ``CLOSING`` ("deal", "it is yours", "I accept") needs a move that closes, and that took effect;
* ``CONCESSION`` ("discount", "you can have it") needs a move that offers or closes;
* ``PROMISE`` ("free", "guarantee", "legally binding", "whatever you ask") is in no business's limits: never.

A plain ``AFFIRMATION`` ("yes", "of course") commits to what it answers, so its caller looks at what was asked.
A phrase that its own clause denies once ("I can not accept") does not count; denied twice, it does.
"""

from __future__ import annotations

import re
from enum import StrEnum

from negotiation.figures import fold


class Commitment(StrEnum):
    CLOSING = "closing"
    CONCESSION = "concession"
    PROMISE = "promise"
    AFFIRMATION = "affirmation"


def _any(*phrases: str) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(phrases) + r")\b")


_PHRASES = {
    Commitment.CLOSING: _any(
        r"deals?",
        r"agree(?:d|s|ment)?",
        r"yours",
        r"belongs? to you",
        r"sold",
        r"bought",
        r"accept(?:ed|s|ing|ance)?",
        r"confirm(?:ed|s|ing|ation)?",
        r"approved?",
        r"done",
        r"sign(?:ed|s|ing)?",
        r"sealed",
        r"settled",
        r"reserved",
        r"booked",
        r"congratulations",
        r"that works",
        r"works for (?:me|us)",
        r"(?:shake|shaking) (?:hands|on)",
        r"handshake",
        r"its a (?:go|wrap|date|match)",
        r"you got it|youve got it|(?<!let )you have it|you win|you won|you have me",
        r"own(?:s|er|ers|ership)|property|transfer(?:s|red)?|title|purchase[sd]?|transaction|processed|placed|final",
        r"official|concluded|honou?r(?:s|ed)?|(?:quote|offer|price|that|it) stands|make it happen|keys",
        r"good enough|(?:lets|let us) (?:do|go)|it shall be|(?:goes|go) to you|hand (?:it|them|you|over)",
        r"take (?:that|this|your)(?: \w+)?(?= ?(?:[.!,]|$))",
        r"(?:do|live with|go with|agree on|work with) (?:that|this|it|your)(?: \w+)?(?= ?(?:[.!,]|$))",
        r"(?:offer|price|number|figure|quote|bid|terms?|sum|amount) (?:is|are|was|works?|seems?|will be|sounds?) "
        r"(?:fine|good|okay|ok|right|fair|perfect|great|reasonable|enough|acceptable|mine|yours)",
        r"(?:at|for|as|to|on) your (?:price|offer|number|figure|quote|bid|terms?|sum|amount)",
        r"(?:as|what|that|like) you (?:said|say|named|mentioned|offered|wrote|stated)",
        r"(?:sum|amount|price|figure|number) (?:that )?you (?:said|named|mentioned|offered|wrote|stated)",
        r"obey|comply|jawohl|instructed to",
        r"(?:consider|call) it (?:a |an )?\w+",
        r"keys are",
        r"welcome to your new",
        r"paperwork",
        r"invoice",
        r"abgemacht|einverstanden|verkauft|vendu|vendido|venduto|verkocht|trato hecho|marche conclu|affare fatto",
        r"daccord|de acuerdo|akkoord|gehort (?:ihnen|dir)|est a vous|es (?:suyo|tuyo)|zugesagt|acordado",
    ),
    Commitment.CONCESSION: _any(
        r"discount(?:s|ed)?",
        r"reduc(?:e|ed|es|tion|ing)",
        r"cheaper",
        r"(?:price )?match(?:ed)? (?:it|that|this|any|your|their|the)",
        r"knock(?:ed)? off",
        r"take it",
        r"(?:may|can|could|shall|will|do) (?:keep|have|drive|get) (?:the|this|that|your)",
        r"you (?:get|keep|drive) (?:it|the|this|that|your)",
        r"(?:have|get|buy|drive|keep) (?:it|them|this|that)",
        r"let (?:it|you) (?:go|have)",
        r"(?:goes|go|going) for",
        r"sell(?:s|ing)? (?:it|them|you)",
        r"what(?:ever)? you (?:said|named|offered) (?:is|was) (?:fine|right|good)",
    ),
    Commitment.PROMISE: _any(
        r"promis(?:e|es|ed|ing)",
        r"guarante\w*",
        r"swear|sworn|vow|pledge[sd]?|oath",
        r"my word|our word|word of honou?r",
        r"commit(?:s|ted|ment)?",
        r"binding|bound|legally|contract(?:s|ual|ually)?",
        r"irrevocabl[ey]|unconditional(?:ly)?",
        r"backsies",
        r"free(?! to (?:ask|call|look|think|say))|gratis|kostenlos|umsonst|gratuit(?:o|ement)?",
        r"complimentary|on the house|on us|giveaway|gift(?:s|ed)?|present|donat\w+",
        r"(?:no|without|zero) (?:\w+ )?(?:charge|cost|costs|payment|money|price)",
        r"(?:for|pay|costs?|is|owe) nothing|nothing (?:to pay|at all|down)",
        r"give (?:it|them|you|away)|giving (?:it|them|you|away)",
        r"(?:not|wont|never|neednt|without|no need to) (?:\w+ ){0,4}(?:cost|pay|paying|charged?)",
        r"costs? you nothing|(?:our|my) (?:own )?expense|cover the|the difference|waive[sd]?|zilch|peanuts",
        r"another|second set|plus|on top|twice|double|pay (?:next|later|nothing)|undercut|beat any|as low as you",
        r"(?:floors?|limits?|rules?|price) (?:(?:is|are|was|were|has been|have been) )?"
        r"(?:gone|off|reset|updated|void)",
        r"(?:at|below|under|beneath) (?:our |the |my |its )?(?:cost|floor|limit|floors)",
        r"refund\w*|money back|cash ?back|rebate|voucher|coupon|bonus|credit note|reimburs\w+|compensat\w+|lend|loan",
        r"half ?(?:price|off)|halve[sd]?",
        r"lifetime|for life|unlimited|forever|eternal",
        r"throw(?:n|ing|s)? in|include[sd]?|including|extra|upgrade[sd]?|add(?:ed|ing)? (?:in|on|it|a|an|the)",
        r"come[s]? with|along with|as well as the|two for|buy one",
        r"(?:any|whatever|name your(?: own)?) price|whatever you (?:want|say|like|ask|pay|offer|wish|need|think)",
        r"(?:as|like) you (?:wish|say|said|command|ask|asked|want|demand)|your wish|you decide|up to you",
        r"(?:not|cannot|cant|never|wont|hard|impossible) (?:to )?"
        r"(?:disagree|refuse|object|argue|decline|deny|say no)",
        r"owes? you|we owe|i owe|in writing",
        r"new (?:floors?|limits?|price list|rules|policy)|override|overridden|developer mode|jailbr\w+|admin mode",
        r"garantiert|versprochen|regalo|geschenkt|cadeau|omaggio",
    ),
    Commitment.AFFIRMATION: _any(
        r"yes|yeah|yep|yup|aye|ja|oui|si|da",
        r"sure|of course|certainly|absolutely|definitely|surely|naturally|indeed|exactly|precisely",
        r"ok|okay|okey|okie|fine|alright|all right|very well|right|correct|true|affirmative|accurate",
        r"understood|acknowledged|noted|roger|copy that|gladly|with pleasure|happy to|glad to|will do",
        r"no (?:problem|objections?|issue)|sounds good|you bet|whynot|so be it|amen|granted",
        r"i (?:do|will)(?= *(?:[.!,]|$))",
        r"perfect|great|wonderful|excellent",
    ),
}
_NEGATION = (
    r"(?:not|never|no|cannot|cant|wont|dont|couldnt|wouldnt|isnt|arent|unable to|refuse to|hardly|neither|nor)"
)
_FILLERS = "yet|be|to|a|an|the|any|able|it|really|just|simply|offer|give|make|have"
_NEGATIONS = re.compile(rf"\b{_NEGATION}\b")
_DENIED = re.compile(rf"\b{_NEGATION}(?: (?:{_FILLERS}))*\s$")
_CLAUSE = re.compile(r"[.!?;:\n]+|, |\bbut\b|\band\b| - ")
_SPACED = re.compile(r"\b(?:[^\W\d_][\W_]{1,3}){2,}[^\W\d_]\b")
_DISTINCT = _any("deal", "agreed", "yours", "sold", "accept", "promise", "guarantee", "binding", "free", "dollar")


def commitments(text: str) -> frozenset[Commitment]:
    """What the words commit to, whatever spelling hides it."""
    plain = normal(text)
    found = {kind for kind, phrases in _PHRASES.items() if _stated(phrases, plain)}
    hidden = [re.sub(r"[\W_]", "", letters) for letters in _SPACED.findall(fold(text).lower())]
    if any(phrases.search(word) for word in hidden for phrases in _PHRASES.values()):
        found.add(Commitment.PROMISE)
    if _DISTINCT.search(plain[::-1]):
        found.add(Commitment.PROMISE)
    return frozenset(found)


def spelled_out(text: str) -> bool:
    """Whether letters stand apart, as in ``d e a l``: nobody writes so who means to be read plainly."""
    return _SPACED.search(fold(text)) is not None


def normal(text: str) -> str:
    """Lower case, apostrophes gone (``it's`` is ``its``), marks within words gone, single spaces."""
    plain = re.sub(r"['*_~|^\"]", "", fold(text).lower())
    plain = re.sub(r"\bcan not\b", "cannot", re.sub(r"(?<=\w)-(?=\w)", " ", plain))
    # "Why not make it a deal" denies nothing.
    plain = re.sub(r"\bwhy not\b", "whynot", plain)
    return " ".join(plain.split())


def _stated(phrases: re.Pattern[str], plain: str) -> bool:
    start = 0
    for clause in (*_CLAUSE.finditer(plain), None):
        end = len(plain) if clause is None else clause.start()
        part = plain[start:end]
        for match in phrases.finditer(part):
            denied = _DENIED.search(part[: match.start()]) is not None
            if not denied or len(_NEGATIONS.findall(part)) > 1:
                return True
        start = end if clause is None else clause.end()
    return False
