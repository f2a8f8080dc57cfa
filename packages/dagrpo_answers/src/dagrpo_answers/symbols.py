r"""Unicode's mathematical signs as LaTeX: `10²` is `10^{2}`, `7½` is `7\frac{1}{2}`.

Other characters stay, and are not read. Not unicodedata.normalize, which makes 10² of ten squared
and takes quadratic time on combining characters.
"""

import re
import unicodedata

from dagrpo_answers.numbers import ROOTED, to_ascii

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
