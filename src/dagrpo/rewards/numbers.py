"""Plain numbers: reading one exactly, and its one normalised text (`$1,000.50` is `1000.5`).

Two plain numbers are equal exactly when their normalised texts are: no float, so any size and any precision decides.
Not here: fractions, powers, percentages and numbers with an exponent (math-verify compares those).
"""

import re
from functools import lru_cache

DIGITS = "0123456789" + "".join(chr(0xFF10 + digit) for digit in range(10))  # ascii and full-width
CHARACTERS = DIGITS + ".,\uff0e\uff0c"
MINUS_SIGNS = frozenset("-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d")  # hyphens, en dash, minus, full-width
CURRENCIES = "$\uff04\u20ac\u00a3\u00a5\u20b9\u20a9\u20bd\u20ba\u20aa\u0e3f\u20a6\u20b1\u20ab\u20b4\u20bf"
_TO_ASCII = (
    {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    | {0x3000: " "}
    | {ord(sign): "-" for sign in MINUS_SIGNS}
)  # full-width forms and every kind of minus sign
_NUMBER = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})++(?:\.[0-9]*+)?|[0-9]++(?:\.[0-9]*+)?|\.[0-9]++")


def to_ascii(text: str) -> str:
    """Full-width characters and unicode minus signs as their ascii counterparts; all others stay.

    Not unicodedata.normalize, which takes quadratic time on combining characters.
    """
    return text if text.isascii() else text.translate(_TO_ASCII)


def normalise(run: str, *, negative: bool) -> str | None:
    """Digits with thousands commas and a fraction -> the shortest text of the same number; None for anything else."""
    text = to_ascii(run)
    if text.isascii() and text.isdecimal():
        number = text.lstrip("0") or "0"
    elif _NUMBER.fullmatch(text):
        whole, _, fraction = text.replace(",", "").partition(".")
        fraction = fraction.rstrip("0")
        number = (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
    else:
        return None
    return f"-{number}" if negative and number != "0" else number


def plain_number(text: str) -> str | None:
    """Return the normalised text of one number, with or without a sign and a currency; None for other texts."""
    digits = text.strip().lstrip(CURRENCIES)
    negative = digits[:1] in MINUS_SIGNS
    if negative or digits[:1] == "+":
        digits = digits[1:].lstrip(CURRENCIES)
    return normalise(digits, negative=negative)


@lru_cache(maxsize=1 << 14)
def truth_number(ground_truth: str) -> str | None:
    """`plain_number` of a ground truth; one is compared with every completion of its group."""
    return plain_number(ground_truth)
