"""Whole numbers in English words: `two thousand`, `one hundred and twenty-five`."""

import re
from itertools import takewhile

_UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: number for number, word in enumerate(_UNITS.split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), start=2)
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_LONGEST = 200  # characters
_WORD = re.compile(r"[a-z]++")
_SPELLED = re.compile(r"[A-Za-z]++(?:[ -]++[A-Za-z]++){0,15}+")


_VOCABULARY = {*_SMALL, *_SCALES, "hundred", "and"}


def spelled_first(text: str) -> int | None:
    """Return the whole number that the first words of a text spell: 20 for `twenty dollars`."""
    words = list(takewhile(lambda word: word in _VOCABULARY, _WORD.findall(text[:_LONGEST].lower())))
    return spelled(" ".join(words))


def spelled(text: str) -> int | None:
    """Return the whole number that a text spells, None for other words."""
    if _SPELLED.fullmatch(text) is None:
        return None
    whole, part, begun = 0, 0, False
    for word in _WORD.findall(text.lower()):
        if word in _SMALL:
            part, begun = part + _SMALL[word], True
        elif word == "hundred":
            part *= 100
        elif word in _SCALES:
            whole, part = whole + part * _SCALES[word], 0
        elif word != "and" or not begun:
            return None
    return whole + part if begun else None
