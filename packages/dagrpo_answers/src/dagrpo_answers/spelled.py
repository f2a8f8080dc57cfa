"""Whole numbers in English words: `two thousand`, `one hundred and twenty-five`."""

import re
from itertools import takewhile

_UNITS = "one two three four five six seven eight nine"
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: number for number, word in enumerate(f"zero {_UNITS} {_TEENS}".split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), start=2)
}
_SCALES = {"billion": 10**9, "million": 10**6, "thousand": 10**3}
_LONGEST = 200  # characters
_WORD = re.compile(r"[a-z]++")
_SPELLED = re.compile(r"[A-Za-z]++(?:[ -]++[A-Za-z]++){0,15}+")
_UNIT, _TEEN, _TEN = (f"(?:{names.replace(' ', '|')})" for names in (_UNITS, _TEENS, _TENS))
_BELOW_100 = rf"(?:{_TEN} {_UNIT}|{_TEN}|{_TEEN}|{_UNIT}) "
_BELOW_1000 = rf"(?:{_BELOW_100}hundred (?:(?:and )?{_BELOW_100})?|{_BELOW_100})"
_NUMBER = re.compile(  # every word ends with a space
    rf"zero |(?!and ){''.join(f'(?:(?:and )?{_BELOW_1000}{scale} )?' for scale in _SCALES)}(?:(?:and )?{_BELOW_1000})?"
)
_VOCABULARY = {*_SMALL, *_SCALES, "hundred", "and"}


def spelled_first(text: str) -> int | None:
    """Return the whole number that the first words of a text spell: 20 for `twenty dollars`. -1 if they are numbers that spell none."""
    words = list(takewhile(lambda word: word in _VOCABULARY, _WORD.findall(text[:_LONGEST].lower())))
    number = spelled(" ".join(words).removesuffix(" and"))
    return -1 if number is None and not _SMALL.keys().isdisjoint(words) else number


def spelled(text: str) -> int | None:
    """Return the whole number that a text spells, None for other words: `three four`, `five hundred hundred`."""
    words = _WORD.findall(text.lower()) if _SPELLED.fullmatch(text) else []
    if not words or _NUMBER.fullmatch(" ".join([*words, ""])) is None:
        return None
    whole, part = 0, 0
    for word in words:
        if word in _SCALES:
            whole, part = whole + part * _SCALES[word], 0
        else:
            part = part * 100 if word == "hundred" else part + _SMALL.get(word, 0)
    return whole + part
