r"""An answer's form: number, words, several values, formula, or equation.

It does not depend on the ground truth, so an answer has one meaning, and is right for one ground truth only. Numbers are parsed in
numbers.py and rational.py, units in words.py. A formula is a text that math-verify reads reliably: names, functions, roots,
intervals, matrices, relations. An equation states what its sides say of a name, and is compared whole otherwise (comparing.py).
Any other text is words, which equal the same words alone: a denial, a question, a command that is not listed.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from dagrpo_answers.dressing import balanced, undressed
from dagrpo_answers.formulas import is_formula, without_separators
from dagrpo_answers.lists import (
    ALTERNATIVES,
    WORDS,
    between,
    bracketed,
    of_both_signs,
    of_one_name,
    parts,
    sides,
    split,
    union,
)
from dagrpo_answers.names import is_name, spelling
from dagrpo_answers.numbers import spaced, to_latex
from dagrpo_answers.rational import rational
from dagrpo_answers.shorthand import usual, written_out
from dagrpo_answers.spelled import spelled
from dagrpo_answers.words import COMMAND, TEXT, without_currency, without_unit

Kind = Literal["number", "words", "values", "formula", "equation", "too large"]
LONGEST = 2000  # characters; a longer answer is compared as text
DEEPEST = 4  # lists in lists

_SPACE_OF_FORMULAS = re.compile(r"(?<![^\W\d_]) | (?![^\W\d_])")
_ABOUT = ("~", "\u223c", "\u2248")
_REMARK = re.compile(r"([^()]*[0-9][^()A-Za-z]*+)(?:\\text ?\{ ?)?\(([A-Za-z][A-Za-z -]{2,100})\) ?\}?")
_ANSWER_IS = re.compile(
    r"\A(?:\\text ?\{ ?)?(?:(?:[Tt]he|[Mm]y) )?(?:[Ff]inal )?[Aa]nswer is:? ?(?:\} ?)?(?=[-+0-9\\.$(x-z])"
)
_HOPE = re.compile(r"(?:\. ?)?I hope (?:it|this) is correct\Z")  # as in Minerva's examples
_SET_OF = re.compile(  # {x | 0 < x < 5}
    r"(\\\{ ?)?([A-Za-z]) ?(?:\\in ?\\mathbb\{ ?R ?\} ?)?(?:[|:]|\\(?:mid|colon|vert)(?![A-Za-z])) ?"
    r"((?=.*\2).*(?:[<>]|\\(?:le|ge|ne)(?![A-Za-z])).*?)(?(1) ?\\\})"
)
_CHOICE = re.compile(r"\( ?(?:\\text(?:bf)? ?\{ ?)?([A-Za-z]) ?\}? ?\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A parsed answer. `latex` is the text by which words and formulas are compared, and which math-verify gets."""

    kind: Kind
    latex: str
    value: Fraction = Fraction(0)  # of a number
    unit: str = ""  # of a number; "" for none, and for a unit with one name only
    brackets: str = ""  # around several values; "": none; braces for alternatives, "or" if they have different names
    values: tuple["Form", ...] = ()  # of a list; of an equation, its sides but for the name
    name: str = ""  # of what an equation states


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
    text = _ANSWER_IS.sub("", _HOPE.sub("", text)) if "nswer" in text else text
    if inside := _CHOICE.fullmatch(text) or _SET_OF.fullmatch(text):
        text = inside.group(inside.lastindex or 1)
    return _several(text) or _equation(text) or _single(text)


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
    if latex.endswith((")", "}")) and (remark := _REMARK.fullmatch(latex)):
        return _spelled(text, _single(remark.group(1)), remark.group(2))
    try:
        value = rational(latex)
    except OverflowError:
        return Form(kind="too large", latex=latex.replace(" ", ""))
    if value is not None:
        return Form(kind="number", latex=_written(value), value=value, unit=unit or currency)
    latex = of_one_name(latex) or latex
    return Form(kind="formula", latex=without_separators(latex)) if not currency and is_formula(latex) else _words(text)


def _spelled(text: str, form: Form, remark: str) -> Form:
    """Return a number after which brackets spell it in words; words for any other remark."""
    return form if form.kind == "number" and form.value == spelled(remark) else _words(text)


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value)
    return f"{'-' * (value < 0)}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


# ---- equations ----


def _equation(text: str, depth: int = 0) -> Form | None:
    """Return what an equation states, None for any other text.

    The value after a name, and the number on all of its sides: 34 for `x = 34` and for `30 + 4 = 34`. Otherwise an equation: of
    `2x + 1` for `y = 2x + 1`, of `2x` and 34 for `2x = 34`. Words if it is false, or has words on a side.
    """
    whole = sides(text)
    if len(whole) == 1 or "\\begin" in whole[0] or ("\\begin" in text and len(whole) > 2):
        return None
    if "" in whole[1:]:
        return _words(text)
    names = [side for side in whole if is_name(side)][: len(whole) - 1]
    forms = _forms((side for side in whole if side and side not in names), depth)
    if names and any(_holds(form, names[0]) for form in forms):  # x = 2x - 1 names nothing
        names, forms = [], _forms(whole, depth)
    name = spelling(names[0]) if names else ""
    kinds = {form.kind for form in forms}
    if kinds == {"number"}:
        return replace(forms[-1], name=name) if _same_numbers(forms) else _words(text)
    if len(forms) == 1 and (not name or kinds < {"values", "too large"}):
        return replace(forms[0], name=name)
    if not forms or not kinds.isdisjoint(("words", "too large")):  # x = x states nothing
        return _words(text)
    latex = "=".join(without_separators(written_out(side)).strip() for side in whole)
    return Form(kind="equation", latex=latex, name=name, values=forms)


def _same_numbers(forms: Sequence[Form]) -> bool:
    """Return True if the sides of an equation have one value and at most one unit; a percent is no plain number."""
    units = {form.unit for form in forms} - {""}
    percent = forms[0].unit == "percent" != forms[-1].unit
    return len({form.value for form in forms}) == 1 and len(units) < 2 and not percent


def _forms(texts: Iterable[str], depth: int) -> tuple[Form, ...]:
    return tuple((_several(text, depth + 1) if depth < DEEPEST else None) or _single(text) for text in texts)


def _holds(form: Form, name: str) -> bool:
    return len(name) == 1 and form.kind != "number" and name in COMMAND.sub(" ", form.latex)


# ---- several values ----


def _several(text: str, depth: int = 0) -> Form | None:
    r"""Return several values: `1, 2`, `(1, 2)`, `\{1, 2\}`, `[1, 2)`, `1 \text{ or } 2`. None for a single value."""
    opening, inside, closing = bracketed(text) if text[:1] in "\\" or "\\pm" not in text else ("", text, "")
    written = parts(inside, grouped=not opening)
    values = written and [value for part in written for value in of_both_signs(part)]
    if values is None or len(values) == 1:
        return None
    if not opening and (intervals := union(text) or between(values)):
        return Form(kind="formula", latex=written_out(intervals))
    members = [_member(part, depth) for part in values]
    forms = _without_one_name(members)
    if any(form.kind in ("words", "too large") for form in forms):
        listed = f"{opening}{', '.join(values)}{closing}" if "," in text or ";" in text else text
        return _words(listed)
    latex = ", ".join(
        f"{form.name}={form.latex}" if form.name and form.kind != "equation" else form.latex for form in forms
    )
    brackets = opening + closing or ("\\{\\}" if values != written else _brackets_of_alternatives(text, members))
    return Form(kind="values", latex=f"{opening}{latex}{closing}", brackets=brackets, values=forms)


def _brackets_of_alternatives(text: str, members: Sequence[Form]) -> str:
    """Return braces for values with `or` or `and` between them or of one name, which are a set; none for a list of other values."""
    names = {form.name for form in members}
    if len(names - {""}) > 1:
        return "or" if len(split(text, ALTERNATIVES)) > 1 else ""
    return "\\{\\}" if members[0].name or len(split(text, WORDS)) > 1 else ""


def _member(part: str, depth: int) -> Form:
    form = (_several(part, depth + 1) if depth < DEEPEST else None) or _equation(part, depth + 1) or _single(part)
    return replace(form.values[0], name=form.name) if form.kind == "equation" and len(form.values) == 1 else form


def _without_one_name(forms: Sequence[Form]) -> tuple[Form, ...]:
    """Return values without their name if it is the same one: `x = 1, x = 2` and `x = 1, 2` are 1 and 2."""
    names = {form.name for form in forms[1:]}
    if names - {forms[0].name, ""} or len(names) > 1 or any(form.kind == "equation" for form in forms):
        return tuple(forms)
    return tuple(replace(form, name="") for form in forms)
