"""Reading the number that ends a GSM8K solution (`#### 18`), and comparing two such numbers exactly.

Any length of text is read in linear time, all of it (verl's reward looks at the last 300 characters only), and no text
makes it fail. Not here: what a right answer is worth (score.py), and answers that are not plain numbers: fractions,
powers, times, ranges and numbers with an exponent are no answer, rather than the number they begin with.
"""

import re

from dagrpo.errors import UserError
from dagrpo.params.base import Extractor
from dagrpo.rewards.numbers import (
    CHARACTERS,
    CURRENCIES,
    MINUS_SIGNS,
    last_number,
    normalise,
    plain_number,
    truth_number,
)
from dagrpo.rewards.verifier import Verifier

MARK = "####"

_STOPS = ".,\uff0e\uff0c"
_DECORATION = " \t\u00a0*_`'\"\\([{<:=+" + CURRENCIES  # what may stand between the mark and the number
_CONTINUES = re.compile(  # 3/4 and 2^10, 5 1/2, 12:30 and 10-15, 1e5
    r"\s?[/^]\s?[0-9{(]|\s[0-9]++/[0-9]|[:\-\u2013\u2212][0-9]|[eE][+-]?[0-9]"
)
_BESIDE = r"[\s%°*_`'\"\\)\]}>.,\uff0e\uff0c" + re.escape(CURRENCIES) + "]"  # that changes nothing about a number
_UNITS = re.compile(rf"{_BESIDE}*+(?:[^\W\d_]++(?:/[^\W\d_]++)?{_BESIDE}*+){{0,4}}")
_CONNECTIVES = re.compile(r"\b(?:or|and|to|but|not|is|if|so|because|maybe|perhaps|plus|minus|times)\b", re.IGNORECASE)


def extract(text: str, extractor: Extractor) -> str | None:
    """The answer that a text gives, as a normalised number (`1,000.50` is `1000.5`); None when it gives none.

    strict: the number right after the last `####`, on the same line; currency, quotes, emphasis and brackets may stand
    before it, anything but a continuation of the number after it. exact: the same, but nothing may stand after it
    save currency and up to four words of a unit. flexible: the last number of the text.
    """
    return last_number(text) if extractor == "flexible" else _after_the_mark(text, alone=extractor == "exact")


def equal(extracted: str, ground_truth: str) -> bool:
    """Whether two plain numbers are equal, exactly. UserError when one of them is not a plain number."""
    return (extracted == ground_truth and truth_number(ground_truth) == ground_truth) or (
        _number(extracted) == _number(ground_truth)
    )


def formatted(text: str) -> bool:
    """Whether a number stands after the last `####`."""
    return _after_the_mark(text, alone=False) is not None


def check(ground_truth: str) -> None:
    """UserError when a ground truth is not a plain number."""
    _number(ground_truth)


def _number(text: str) -> str:
    """A plain number, never one with an exponent: `1e999999999` would cost gigabytes somewhere down the line."""
    number = truth_number(text) if len(text) < 100 else plain_number(text)
    if number is None:
        raise UserError(f"{text[:40]!r} is not a plain number such as 18, -3 or 1,000.5: correct the ground truth.")
    return number


def _after_the_mark(text: str, *, alone: bool) -> str | None:
    _, mark, tail = text.rpartition(MARK)
    if not mark:
        return None
    number = tail.strip(" ")
    if number.isascii() and number.isdecimal() and number[0] != "0":
        return number  # what nearly all texts end with
    line = tail.partition("\n")[0].lstrip(_DECORATION)
    negative = line[:1] in MINUS_SIGNS
    if negative:
        line = line[1:].lstrip(_DECORATION)
    rest = line.lstrip(CHARACTERS)
    if rest and (_CONTINUES.match(rest) or (alone and not _is_a_unit(rest))):
        return None
    return normalise(line[: len(line) - len(rest)].rstrip(_STOPS), negative=negative)


def _is_a_unit(rest: str) -> bool:
    return _UNITS.fullmatch(rest) is not None and _CONNECTIVES.search(rest) is None


VERIFIER = Verifier(name="gsm8k", extract=extract, equal=equal, formatted=formatted, check=check)
