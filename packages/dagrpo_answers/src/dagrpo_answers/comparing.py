r"""Comparison of two answers, down to the formulas in them.

The values of a list are compared one by one as they are written; by name if both lists have the same names, and in any order if
neither has brackets other than braces.
A list in square or half-open brackets equals none without them, and one without round or square brackets is no range.
Two equations are the same if one is the other with its sides moved or scaled, and an equation whose sides are all the same is equal to
its last side: `y = 2x + 1` to `2x + 1`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from dagrpo_answers.dressing import balanced
from dagrpo_answers.errors import UserError
from dagrpo_answers.forms import Form, read
from dagrpo_answers.names import different_quantities, same_quantity
from dagrpo_answers.numbers import plain_number, truth_number
from dagrpo_answers.pool import Comparison, WorkerPool
from dagrpo_answers.words import COMMAND

Decide = Callable[
    [str, str], bool | None
]  # formula or equation of the answer, of the ground truth -> whether equal; None: undecided

_RELATION = re.compile(r"[<>]|\\(?:le|ge|in)(?![A-Za-z])")
_A_SET = re.compile(r"[<>]|\\(?:le|ge|in|mathbb|cup)(?![A-Za-z])")
_RANGE = re.compile(r"[<>]|\\(?:le|ge|mathbb)(?![A-Za-z])|\\(?:in|cup) *[(\[]|[)\]] *\\cup(?![A-Za-z])")
_UNORDERED = ("", "\\{\\}")
_OPTIONAL = ("", "\\{\\}", "()")  # brackets that a list may also do without
_LETTER = re.compile(r"[A-Za-z]")


def same(answer: Form, truth: Form, decide: Decide) -> bool | None:
    """Return True if two answers are equal; None if a formula in them is undecided."""
    if different_quantities(answer.name, truth.name):
        return False
    kinds = {answer.kind, truth.kind}
    if kinds == {"number"}:
        return answer.value == truth.value and (not (answer.unit and truth.unit) or answer.unit == truth.unit)
    if kinds == {"values"}:
        return _same_lists(answer, truth, decide)
    if len(kinds) == 1 and answer.latex == truth.latex:
        return True
    if "words" in kinds:
        return False
    if "too large" in kinds:
        return decide(answer.latex, truth.latex)
    if "equation" in kinds:
        return _same_equations(answer, truth, decide)
    if "values" in kinds:
        values, other = (answer, truth) if answer.kind == "values" else (truth, answer)
        written_differently = other.kind == "formula" and _A_SET.search(other.latex)  # an interval, a point or a set
        return (
            decide(answer.latex, truth.latex)
            if written_differently and not _values_of_a_range(values, other)
            else False
        )
    return _same_formulas(answer, truth, decide)


def _same_formulas(answer: Form, truth: Form, decide: Decide) -> bool | None:
    if len(answer.latex) == len(truth.latex) == 1:
        return False
    if "number" in (answer.kind, truth.kind) and _RELATION.search(answer.latex + truth.latex):
        return False
    if any(
        "\\{" in one.latex and _RANGE.search(other.latex) and not _RANGE.search(one.latex)
        for one, other in ((answer, truth), (truth, answer))
    ):
        return False
    if answer.latex.replace(" ", "") == truth.latex.replace(" ", ""):
        return True
    return False if _differ_in_case(answer.latex, truth.latex) else decide(answer.latex, truth.latex)


def _differ_in_case(answer: str, truth: str) -> bool:
    """Return True if a letter is a capital in one formula and none in the other: math-verify takes a for A."""
    first, second = (set(_LETTER.findall(COMMAND.sub(" ", latex))) for latex in (answer, truth))
    only, other = first - second, second - first
    return any(letter.swapcase() in other for letter in only)


def _all(results: Iterable[bool | None]) -> bool | None:
    """Return False if one result is False, else None if one is undecided. Results after a False are not asked for."""
    undecided = False
    for result in results:
        if result is False:
            return False
        undecided |= result is None
    return None if undecided else True


# ---- equations ----


def _same_equations(answer: Form, truth: Form, decide: Decide) -> bool | None:
    if answer.kind != truth.kind:
        equation, other = (answer, truth) if answer.kind == "equation" else (truth, answer)
        values = equation.values
        return _all(
            same(*pair, decide) for pair in [(values[-1], other), *((value, values[-1]) for value in values[:-1])]
        )
    if answer.name and same_quantity(answer.name, truth.name):
        values = answer.values
        last = _all(
            same(*pair, decide)
            for pair in [(values[-1], truth.values[-1]), *((value, values[-1]) for value in values[:-1])]
        )
        if last is not False:
            return last
    return False if _differ_in_case(answer.latex, truth.latex) else decide(answer.latex, truth.latex)


# ---- lists ----


def _same_lists(answer: Form, truth: Form, decide: Decide) -> bool | None:
    if len(answer.values) != len(truth.values):
        return False
    brackets = {answer.brackets, truth.brackets}
    if len(brackets) > 1 and not ("" in brackets and brackets <= {*_OPTIONAL}):
        return False
    values, truths = _with_names(answer, truth), _with_names(truth, answer)
    names, truth_names = ({value.name for value in each} for each in (values, truths))
    same_names = names == truth_names
    if same_names and "" not in names:
        values, truths = (sorted(each, key=lambda value: value.name) for each in (values, truths))

    def member(first: Form, second: Form) -> bool | None:
        renamed = first.name and second.name and first.name != second.name
        if renamed and (first.name in truth_names or second.name in names):
            return False
        if first.latex.startswith("\\{") != second.latex.startswith("\\{"):  # math-verify takes {1}, {2} for {1, 2}
            return False
        return same(first, second, decide)

    in_order = _all(member(*pair) for pair in zip(values, truths, strict=True))
    if in_order is None and answer.name.startswith("(") and truth.name.startswith("(") and answer.name != truth.name:
        return False  # math-verify would take (y, x) for (x, y)
    unordered = same_names and brackets <= {*_UNORDERED, "or"}
    return in_order if in_order or not unordered else _in_any_order(values, truths, member)


def _values_of_a_range(values: Form, other: Form) -> bool:
    """Return True if values are a set and the other form a range, for which math-verify would take two values: `-2, 2` and `-2<x<2`."""
    return (
        values.brackets in (*_UNORDERED, "or") and bool(_RANGE.search(other.latex)) and not _RANGE.search(values.latex)
    )


def _with_names(form: Form, other: Form) -> Sequence[Form]:
    """Return values with the names before their list, `(x, y) = `; those of a bare point are its coordinates if the other has these."""
    names = form.name[1:-1].split(",") if form.name.startswith("(") else []
    coordinates = list("xyz"[: len(form.values)])
    if form.brackets == "()" and not names and sorted(value.name for value in other.values) == coordinates:
        names = coordinates
    if len(names) != len(form.values):
        return form.values
    return [replace(value, name=name) for value, name in zip(form.values, names, strict=True)]


def _in_any_order(
    values: Sequence[Form], truths: Sequence[Form], member: Callable[[Form, Form], bool | None]
) -> bool | None:
    """Return True if each value equals one ground truth, and each ground truth one value."""
    left, undecided = list(truths), 0
    for value in values:
        results = [member(value, truth) for truth in left]
        if True in results:
            del left[results.index(True)]
        elif None in results:
            undecided += 1
        else:
            return False
    return None if undecided else True


CHECK_SECONDS = 10.0  # for one ground truth, of which there are few

_WORDS = re.compile(r"(?:\\(?:text|textbf|mbox|mathrm)\{)?\(?[A-Za-z][A-Za-z ,.'-]*+\)?\}?")


def equal(answer: str, ground_truth: str) -> bool | None:
    """Return True if answer and ground truth are equal, each parsed by its own form; None if only math-verify can decide.

    Raises UserError for an invalid ground truth.
    """
    if answer == ground_truth:
        return True
    number, truth = plain_number(answer), truth_number(ground_truth)
    if number is not None and truth is not None:
        return number == truth
    expected = read(ground_truth)
    if expected.kind == "words" and not balanced(ground_truth):
        raise UserError(no_latex(ground_truth))
    return same(read(answer), expected, lambda formula, other: None)  # left to math-verify


def for_math_verify(text: str) -> str:
    """Return a text as math-verify gets it: undressed, with every argument in braces, without a unit."""
    form = read(text)
    return text if form.kind == "words" else form.latex


def check(ground_truth: str) -> None:
    """Raise UserError unless a ground truth is a number, words, or LaTeX that math-verify can read."""
    text = ground_truth.strip()
    if not text:
        raise UserError("the ground truth is empty: give the answer as a number or in LaTeX.")
    if truth_number(text) is not None or read(text).kind == "number" or _WORDS.fullmatch(text):
        return
    if _checking().compare([Comparison(answer=None, ground_truth=for_math_verify(text))]) != ["right"]:
        raise UserError(no_latex(text))


def no_latex(ground_truth: str) -> str:
    """Return the error message for a ground truth that math-verify cannot read."""
    return f"{ground_truth[:40]!r} is neither a number nor LaTeX that math-verify can read: correct the ground truth."


@lru_cache(maxsize=1)
def _checking() -> WorkerPool:
    """Return the one worker of this process that checks ground truths; it ends with the process."""
    return WorkerPool(seconds=CHECK_SECONDS, processes=1)
