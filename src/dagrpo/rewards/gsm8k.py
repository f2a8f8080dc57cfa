"""Reading the number that ends a GSM8K solution (`#### 18`), and comparing two such numbers exactly.

Any length of text is read in linear time, all of it (verl's reward looks at the last 300 characters only), and no text
makes it fail. Not here: what a right answer is worth (score.py), and answers that are not plain numbers: fractions,
powers, times, ranges and numbers with an exponent are no answer, rather than the number they begin with.
"""

import re
import unicodedata
from decimal import Decimal

from dagrpo.params.base import Extractor

MARK = "####"

_FULL_WIDTH_DIGITS = "".join(chr(0xFF10 + digit) for digit in range(10))
_DIGITS = "0123456789" + _FULL_WIDTH_DIGITS
_NUMBER_CHARACTERS = _DIGITS + ".,\uff0e\uff0c"  # ascii and full-width
_MINUS_SIGNS = frozenset("-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d")  # hyphens, en dash, minus, full-width
_CURRENCIES = "$\uff04\u20ac\u00a3\u00a5"
_DECORATION = " \t\u00a0*_`'\"\\([{<:=+" + _CURRENCIES  # what may stand between the mark and the number

_NUMBER = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})++(?:\.[0-9]*+)?|[0-9]++(?:\.[0-9]*+)?|\.[0-9]++")
_CONTINUES = re.compile(  # 3/4 and 2^10, 5 1/2, 12:30 and 10-15, 1e5
    r"\s?[/^]\s?[0-9{(]|\s[0-9]++/[0-9]|[:\-\u2013\u2212][0-9]|[eE][+-]?[0-9]"
)


def extract(text: str, extractor: Extractor) -> str | None:
    """The answer that a text gives, as a normalised number (`1,000.50` is `1000.5`); None when it gives none.

    strict: the number right after the last `####`, on the same line; currency, quotes, emphasis and brackets may stand
    before it, anything but a continuation of the number after it. flexible: the last number of the text.
    """
    return _after_the_mark(text) if extractor == "strict" else _last_number(text)


def equal(extracted: str, ground_truth: str) -> bool:
    """Whether two plain numbers are equal, exactly. ValueError when one of them is not a plain number."""
    return _decimal(extracted) == _decimal(ground_truth)


def _decimal(text: str) -> Decimal:
    """A plain number, never one with an exponent: `1e999999999` would cost gigabytes somewhere down the line."""
    number = text.strip()
    negative = number[:1] in _MINUS_SIGNS
    normalised = _normalise(number[1:] if negative else number, negative=negative)
    if normalised is None:
        raise ValueError(f"{text[:40]!r} is not a plain number such as 18, -3 or 1,000.5: correct the ground truth.")
    return Decimal(normalised)


def _after_the_mark(text: str) -> str | None:
    _, mark, tail = text.rpartition(MARK)
    if not mark:
        return None
    line = tail.partition("\n")[0].lstrip(_DECORATION)
    negative = line[:1] in _MINUS_SIGNS
    if negative:
        line = line[1:].lstrip(_DECORATION)
    rest = line.lstrip(_NUMBER_CHARACTERS)
    if _CONTINUES.match(rest):
        return None
    return _normalise(line[: len(line) - len(rest)].rstrip(".,\uff0e\uff0c"), negative=negative)


def _last_number(text: str) -> str | None:
    last = max(text.rfind(digit) for digit in _DIGITS)  # from the end, so that no other number costs anything
    before = text[: last + 1].rstrip(_NUMBER_CHARACTERS)
    run = text[len(before) : last + 1]
    number = _normalise(run, negative=_ends_in_a_sign(before.rstrip(_CURRENCIES)))
    if number is None:  # not one number but a list of them (3,4), or one after an ellipsis (...5)
        number = _normalise(run[max(run.rfind(","), run.rfind("\uff0c")) + 1 :].lstrip(".\uff0e"), negative=False)
    return number


def _ends_in_a_sign(before: str) -> bool:
    """Whether a dash at the end is a minus sign: not in 16-3, x-3 or (a+b)-3."""
    operand = before[-2:-1]
    return before[-1:] in _MINUS_SIGNS and not (operand.isalnum() or operand == ")")


def _normalise(run: str, *, negative: bool) -> str | None:
    """Digits with thousands commas and a fraction -> the shortest text of the same number; None for anything else."""
    text = unicodedata.normalize("NFKC", run)  # full-width to ascii
    if not _NUMBER.fullmatch(text):
        return None
    whole, _, fraction = text.replace(",", "").partition(".")
    fraction = fraction.rstrip("0")
    number = (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
    return f"-{number}" if negative and number != "0" else number
