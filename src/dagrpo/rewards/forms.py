r"""An answer's form: a number, words, several values, or a formula.

It does not depend on the ground truth, so an answer has one meaning, and is right for one ground truth only. Numbers are parsed in
numbers.py and rational.py, units in words.py. A formula is a text that math-verify reads reliably: names, functions, roots,
intervals, matrices, relations. Any other text is words, which equal the same words alone: an answer with `or` in it, a denial, a
question, a command that is not listed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from dagrpo.rewards.dressing import balanced, undressed
from dagrpo.rewards.formulas import SHORT_WORDS, commands_are_known, is_formula, without_separators
from dagrpo.rewards.numbers import NUMERAL, spaced
from dagrpo.rewards.rational import rational
from dagrpo.rewards.shorthand import usual, written_out
from dagrpo.rewards.symbols import to_latex
from dagrpo.rewards.words import COMMAND, TEXT, changes_a_number, without_currency, without_unit

Kind = Literal["number", "words", "values", "formula", "too large"]
LONGEST = 2000  # characters; a longer answer is compared as text

_SPACE_OF_FORMULAS = re.compile(r"(?<![^\W\d_]) | (?![^\W\d_])")
_EQUALS = re.compile(r"(?<![<>!=:])=(?!=)")
RELATION = re.compile(r"[<>]|\\(?:le|leq|ge|geq|lt|gt|in|pm|mp)(?![A-Za-z])")
_ABOUT = ("~", "\u223c", "\u2248")
_OF_DOUBT = SHORT_WORDS - {"of", "in", "the", "an"}
_CONSTANTS = re.compile(r"\\(?:[dtc]?frac|sqrt|pi|infty|cdot|times|div)(?![A-Za-z])")
_NAMED = re.compile(r"[A-Za-z]")
_CHOICE = re.compile(r"\( ?(?:\\text(?:bf)? ?\{ ?)?([A-Za-z]) ?\}? ?\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A parsed answer. `latex` is the text by which words and formulas are compared, and which math-verify gets."""

    kind: Kind
    latex: str
    value: Fraction = Fraction(0)  # of a number
    unit: str = ""  # of a number; "" for none, and for a unit with one name only
    brackets: str = ""  # around several values; "": none
    values: tuple["Form", ...] = ()


@lru_cache(maxsize=1 << 13)
def read(answer: str) -> Form:
    """Parse an answer. Never raises OverflowError: a number beyond the limit is of the kind too large."""
    if len(answer) > LONGEST:
        return Form(kind="too large", latex=answer)
    if answer.lstrip().startswith(_ABOUT):
        return _words(answer)
    text = usual(undressed(spaced(to_latex(answer))))
    if not balanced(text):
        return _words(text)
    choice = _CHOICE.fullmatch(text)
    text = choice.group(1) if choice else text
    return _equation(text) or _values(text) or _single(text)


def _words(text: str) -> Form:
    """Return words without spaces, decoration and case; a single letter keeps its case."""
    plain = " ".join(TEXT.sub(r" \1 ", written_out(text)).replace("$", " ").split()).rstrip(".")
    return Form(kind="words", latex=plain if len(plain) == 1 else _spaces_between_words_alone(plain.casefold()))


def _spaces_between_words_alone(text: str) -> str:
    return _SPACE_OF_FORMULAS.sub("", text)


# ---- one value ----


def _single(text: str) -> Form:
    """Return a number with or without a unit, a formula, or words."""
    bare = without_currency(text)
    if bare is None:
        return _words(text)
    text, currency = bare
    head, unit = without_unit(text)
    if unit and currency and unit != currency:
        return _words(text)
    latex = written_out(head).strip()
    try:
        value = rational(latex)
    except OverflowError:
        return Form(kind="too large", latex=latex.replace(" ", ""))
    if value is not None:
        return Form(kind="number", latex=_written(value), value=value, unit=unit or currency)
    return Form(kind="formula", latex=without_separators(latex)) if not currency and is_formula(latex) else _words(text)


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value)
    return f"{'-' * (value < 0)}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


# ---- equations, and several values ----


def _equation(text: str) -> Form | None:
    """Return the number that an equation states: 34 for `x = 34`, and for `30 + 4 = 34`, which is true. Words for any other equation."""
    parts = [part.strip() for part in _EQUALS.split(text)]
    if len(parts) == 1 or re.search(r"[,;&]|\\begin", re.sub(r"(?<=[0-9]),(?=[0-9]{3})", "", text)):
        return None
    last = _single(parts[-1])
    if last.kind != "number":
        return None
    is_named = parts[0] == "" or (_names(parts[0]) and _single(parts[0]).kind != "number")
    if not is_named and len(parts) == 2 and _single(parts[0]).kind == "formula":
        return None  # \\sqrt{16} = 4: math-verify decides
    middle = parts[1:-1] if is_named else parts[:-1]
    return last if all(_says(part, last.value) or _is_name(part) for part in middle) else _words(text)


def _names(part: str) -> bool:
    """Return True if the left side of an equation names its right side: a letter or a function, and no words of doubt."""
    plain = TEXT.sub(r" \1 ", part)
    letters = COMMAND.sub(" ", plain)
    doubt = changes_a_number(letters) or not _OF_DOUBT.isdisjoint(letters.lower().split())
    return (
        commands_are_known(plain)
        and not doubt
        and not RELATION.search(part)
        and bool(_NAMED.search(_CONSTANTS.sub(" ", plain)))
    )


def _is_name(part: str) -> bool:
    return not re.search(r"[0-9]", part) and _names(part)


def _says(part: str, value: Fraction) -> bool:
    form = _single(part)
    return form.kind == "number" and form.value == value


def _values(text: str) -> Form | None:
    """Return several values: `1, 2`, `(1, 2)`, `\\{1, 2\\}`, `[1, 2)`. None for a single value."""
    opening, inside, closing = bracketed(text)
    values = parts(inside, grouped=not opening)
    if values is None or len(values) == 1:
        return None
    forms = tuple(_single(part) for part in values)
    if any(form.kind in ("words", "too large") for form in forms):
        latex = f"{opening}{', '.join(values)}{closing}"
        return Form(kind="words", latex=_spaces_between_words_alone(latex.casefold()))
    return Form(
        kind="values",
        latex=f"{opening}{', '.join(form.latex for form in forms)}{closing}",
        brackets=opening + closing,
        values=forms,
    )


# ---- lists of values: brackets around them, commas and semicolons between ----


def bracketed(text: str) -> tuple[str, str, str]:
    """Return a text as its opening bracket, what is inside, and its closing one; "" for brackets that are not around all of it."""
    for opening, closings in (("\\{", ("\\}",)), ("(", (")", "]")), ("[", ("]", ")"))):
        for closing in closings:
            if text.startswith(opening) and text.endswith(closing):
                inside = text[len(opening) : -len(closing)]
                return (opening, inside, closing) if _depths(inside) else ("", text, "")
    return "", text, ""


def _depths(text: str) -> bool:
    """Return True if brackets close only what was opened inside the text."""
    depth = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        if depth < 0:
            return False
    return depth == 0


def parts(text: str, *, grouped: bool) -> list[str] | None:
    """Split a text at its outermost commas and semicolons, except, if `grouped`, commas of thousands. None: a part is empty."""
    parts, depth, start = [], 0, 0
    thousands = {at for numeral in NUMERAL.finditer(text) if grouped for at in _commas(numeral)}
    for at, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if character in ",;" and depth == 0 and at not in thousands:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return None if "" in parts or "\\begin" in text else parts


def _commas(numeral: re.Match[str]) -> Sequence[int]:
    text = numeral.group() if numeral.group("grouped") else ""
    return [numeral.start() + at for at, character in enumerate(text) if character == ","]
