"""Sentences and words as NLTK counts them, without its learned model."""

import re
from itertools import pairwise

_CLOSING = "\"')]}*_\u00bb\u201d\u2019"
_OPENING = "\"'([{*_\u00ab\u201c\u2018"
_TITLES = frozenset(  # and other abbreviations that end no sentence
    ("mr", "mrs", "ms", "dr", "prof", "rev", "gen", "sen", "rep", "gov", "capt", "lt", "col", "sgt", "st", "mt", "vs", "no", "fig",
     "vol", "e.g", "i.e", "cf", "al", "jan", "feb", "aug", "sept", "oct", "nov", "dec")
)  # fmt: skip
_ABBREVIATIONS = frozenset(  # that may end one
    ("inc", "ltd", "co", "corp", "jr", "sr", "u.s", "u.k", "u.n", "a.m", "p.m", "d.c", "ph.d", "etc")
)
_STARTERS = frozenset(
    ("the", "it", "he", "she", "they", "we", "i", "in", "this", "that", "these", "those", "but", "and", "however", "if", "when", "for",
     "as", "there", "you", "our", "my", "his", "her")
)  # fmt: skip
_BETWEEN = re.compile(r"[\s;@#$%&?!*\[\](){}<>\"\u201c\u201d\u00ab\u00bb]+|[:,](?![0-9])|--+|\.{2,}|\u2026")
_CONTRACTION = re.compile(r"(?<=\w)(?:'(?:S|M|D|LL|RE|VE)|N'T)\b")


def sentence_count(text: str) -> int:
    """Return the number of sentences: a full stop, ! or ? before a space ends one, but for abbreviations and initials."""
    words = text.split()
    ends = sum(_ends(word, following) for word, following in pairwise(words))
    return ends + bool(words)


def _ends(word: str, following: str) -> bool:
    bare = word.rstrip(_CLOSING)
    if not bare.endswith((".", "!", "?")):
        return False
    if bare.endswith(("!", "?")):
        return True
    stem, after = bare.rstrip(".").lstrip(_OPENING), following.lstrip(_OPENING)
    if bare.endswith(".."):
        return after[:1].isupper()
    if len(stem) == 1 and stem.isalpha():
        return not after[:1].isalpha()
    if stem.lower() in _TITLES:
        return False
    return stem.lower() not in _ABBREVIATIONS or (after.rstrip(",.'").lower() in _STARTERS and after[:1].isupper())


def capital_words(text: str) -> int:
    """Return the number of words, and contracted parts of words (`N'T`), without a small letter and with a capital one."""
    words = [word for word in _BETWEEN.split(text) if word.isupper()]
    return sum(1 + len(_CONTRACTION.findall(word)) for word in words)
