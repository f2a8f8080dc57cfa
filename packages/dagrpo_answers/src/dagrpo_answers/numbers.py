r"""Numbers in decimal notation, read exactly.

A plain number has digits, thousands commas and a point alone, and one normalised text: `$1,000.50` is `1000.5`. Two plain numbers
are equal exactly if these texts are; without a float, every digit counts.

A numeral is a number in LaTeX:

| form | reading |
|---|---|
| `1234`, `12.5`, `.5` | the number |
| `1,234,567.5`, `1 234 567` | one to three digits, the first not 0, then groups of three, all after a comma or all after a space |
| `1,23`, `1, 234`, `0,125`, `1,234 567` | not a number |
| `0.1\overline{6}`, `0.1\bar{6}`, `0.1(6)`, `0.\dot{3}`, `0.\dot{1}4\dot{2}` | the digits repeat without end |
| `1.5e-3`, `1E6` | scientific |

`spaced` leaves two separators: `{,}` and `,\!`, with the spaces after them, become a comma; `\,`, `\;`, `\ ` and `~` become a space.
Unicode's signs become LaTeX: `10²` is `10^{2}`, `7½` is `7\frac{1}{2}`; other characters stay, and are not read.
rational.py reads signs and fractions, words.py units.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

DIGITS = "0123456789" + "".join(chr(0xFF10 + digit) for digit in range(10))  # ascii and full-width
MINUS_SIGNS = frozenset("-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d")  # hyphens, en dash, minus, full-width
CURRENCIES = "$\uff04\u20ac\u00a3\u00a5\u20b9\u20a9\u20bd\u20ba\u20aa\u0e3f\u20a6\u20b1\u20ab\u20b4\u20bf"
_TO_ASCII = (
    {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    | {0x3000: " "}
    | {ord(sign): "-" for sign in MINUS_SIGNS}
)  # full-width forms and every kind of minus sign
_NUMBER = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})++(?:\.[0-9]*+)?|[0-9]++(?:\.[0-9]*+)?|\.[0-9]++")


def to_ascii(text: str) -> str:
    """Replace full-width characters and unicode minus signs by their ascii counterparts; all others stay.

    Not unicodedata.normalize, which takes quadratic time on combining characters.
    """
    return text if text.isascii() else text.translate(_TO_ASCII)


def normalise(run: str, *, negative: bool) -> str | None:
    """Return the shortest text of the number that digits, thousands commas and decimals spell; None for anything else."""
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
    """Return `plain_number` of a ground truth, cached: every completion of its group is compared with it."""
    return plain_number(ground_truth)


# ---- numerals ----

LONGEST = 1000  # digits of a number whose value is taken, zeros of its exponent among them

_SPACES = re.compile(  # but the second half of a matrix's \\
    r"(?:(?<!\\)\\(?:[,;: \n]|(?:q?quad|thinspace|enspace)(?![A-Za-z])|hspace\*?\{[^{}]*+\})|~|\s)++"
)
_NARROWED = re.compile(r"(?<=[0-9])\s*+(?:\\!\s*+)++(?=[0-9])")  # 3\!4 looks like 34, and is two numbers
_COMMAS = re.compile(r"\{,\}\s*+|,\s*+(?:\\!\s*+)++")
GROUPED = r"[1-9][0-9]{0,2}(?:(?:,[0-9]{3})++|(?: [0-9]{3})++)(?![0-9])"
ROOTED = rf"(?:{GROUPED}|[0-9]++)(?:\.[0-9]++)?+|\.[0-9]++"  # what a root sign takes of the digits after it
NUMERAL = re.compile(
    rf"(?P<grouped>{GROUPED})"
    r"(?:\.(?P<grouped_decimals>[0-9]++))?+"
    r"|(?P<whole>[0-9]*+)\.(?P<fixed>[0-9]*+)(?:\\(?:overline|bar)\s?\{(?P<bar>[0-9]++)\}|\((?P<brackets>[0-9]++)\)"
    r"|\\dot\s?\{(?P<dot>[0-9])\}(?:(?P<dots>[0-9]*+)\\dot\s?\{(?P<last_dot>[0-9])\})?)"
    r"|(?P<decimal>[0-9]++(?:\.[0-9]++)?+|\.[0-9]++)(?:[eE](?P<exponent>[-+]?[0-9]{1,30})(?![0-9A-Za-z.]))?"
)


def spaced(latex: str) -> str:
    r"""Return LaTeX with every kind of space as one space, every kind of thousands comma as a comma, and no `\!`."""
    if "\\" in latex or "{,}" in latex:
        latex = _NARROWED.sub(" ", _COMMAS.sub(",", latex)).replace("\\!", "")
    return _SPACES.sub(" ", latex)


def value_of(numeral: re.Match[str]) -> Fraction:
    """Return the value of a match of NUMERAL. Raises OverflowError if it has more than LONGEST digits."""
    parts = numeral.groupdict()
    exponent = int(parts["exponent"] or 0)
    if len(numeral.group()) + abs(exponent) > LONGEST:
        raise OverflowError
    if parts["grouped"]:
        whole = parts["grouped"].replace(",", "").replace(" ", "")
        return _decimal(whole, parts["grouped_decimals"] or "")
    if parts["fixed"] is not None:
        dotted = f"{parts['dot']}{parts['dots'] or ''}{parts['last_dot'] or ''}"
        return _repeating(parts["whole"], parts["fixed"], parts["bar"] or parts["brackets"] or dotted)
    whole, _, decimals = parts["decimal"].partition(".")
    return _decimal(whole, decimals) * Fraction(10) ** exponent


def _decimal(whole: str, decimals: str) -> Fraction:
    return Fraction(int((whole or "0") + decimals), 10 ** len(decimals))


def _repeating(whole: str, fixed: str, period: str) -> Fraction:
    """Return the value of a repeating decimal: 0.1(6) is (16 - 1) / 90, with a nine per repeated digit and a zero per fixed one."""
    without, all_of_them = int((whole or "0") + fixed), int((whole or "0") + fixed + period)
    return Fraction(all_of_them - without, (10 ** len(period) - 1) * 10 ** len(fixed))


# Marks without a glyph: joiners, marks of direction (but no overrides, which reverse the visible order), variation selectors.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202c\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff]"
)

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ"
_SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ"
_RAISED = dict(zip(_SUPERSCRIPTS + _SUBSCRIPTS, "0123456789+-()n" * 2, strict=True))
_ROOT = re.compile(rf"([√∛∜])\s*+({ROOTED})")
_RUN = re.compile(rf"[{_SUPERSCRIPTS}]++|[{_SUBSCRIPTS}]++")

VULGAR = {
    **dict(
        zip("½⅓⅔¼¾⅕⅖⅗⅘⅙", ((1, 2), (1, 3), (2, 3), (1, 4), (3, 4), (1, 5), (2, 5), (3, 5), (4, 5), (1, 6)), strict=True)
    ),
    **dict(zip("⅚⅐⅛⅜⅝⅞⅑⅒", ((5, 6), (1, 7), (1, 8), (3, 8), (5, 8), (7, 8), (1, 9), (1, 10)), strict=True)),
}
NUMERIC = _SUPERSCRIPTS[:10] + "".join(VULGAR)  # parts of a number other than digits
_COMMANDS = {
    "×": "times", "✕": "times", "·": "cdot", "⋅": "cdot", "∙": "cdot", "•": "cdot", "÷": "div", "√": "sqrt", "π": "pi", "θ": "theta",
    "α": "alpha", "β": "beta", "γ": "gamma", "φ": "phi", "∞": "infty", "≤": "le", "≥": "ge", "≠": "ne", "±": "pm", "∪": "cup",
    "∩": "cap", "∈": "in", "∅": "emptyset", "≈": "approx", "→": "to", "∠": "angle", "ℝ": "mathbb{R}", "∨": "lor", "∓": "mp",
}  # fmt: skip
_LETTERS: dict[str, str] = {
    **{sign: f"\\{command} " for sign, command in _COMMANDS.items()},
    **{sign: f"\\frac{{{numerator}}}{{{denominator}}}" for sign, (numerator, denominator) in VULGAR.items()},
    "∛": "\\sqrt[3]",
    "∜": "\\sqrt[4]",
    **dict.fromkeys("°º˚", "^{\\circ}"),
    "\u2103": "^{\\circ}\\text{C}",
    "\u2109": "^{\\circ}\\text{F}",
    **dict.fromkeys("\u2044\u2215", "/"),
    **dict.fromkeys(
        "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u2028\u2029", " "
    ),
    **dict.fromkeys("\u3002\uff61", "."),
    "\u3001": ", ",
    "∗": "*",
    "…": "\\ldots ",
}


class _Signs(dict[int, str]):
    """The LaTeX of each character. Digits of all scripts become digits; unlisted characters stay."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        return self.setdefault(code, str(unicodedata.decimal(character)) if character.isdecimal() else character)


_TO_LATEX = _Signs(str.maketrans(_LETTERS))


def to_latex(text: str) -> str:
    """Return a text with the signs of mathematics in ascii and LaTeX, in linear time."""
    if text.isascii():
        return text
    return _RUN.sub(_raised, _ROOT.sub(r"\1{\2}", to_ascii(INVISIBLE.sub("", text)))).translate(_TO_LATEX)


def _raised(run: re.Match[str]) -> str:
    mark = "^" if run.group()[0] in _SUPERSCRIPTS else "_"
    return f"{mark}{{{''.join(map(_RAISED.__getitem__, run.group()))}}}"
