r"""Comparison of two parsed answers, down to the formulas in them.

The values of a list are compared one by one: in any order if neither list has brackets other than braces, or each value has a name.
Two equations are the same if one is the other with its sides moved or scaled, and an equation whose sides are all the same is equal to
its last side: `y = 2x + 1` to `2x + 1`.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from dagrpo.rewards.forms import Form
from dagrpo.rewards.words import COMMAND

Decide = Callable[
    [str, str], bool | None
]  # formula or equation of the answer, of the ground truth -> whether equal; None: undecided

_RELATION = re.compile(r"[<>]|\\(?:le|ge|in|pm|mp)(?![A-Za-z])")
_A_SET = re.compile(r"[<>]|\\(?:le|ge|in|pm|mathbb|cup)(?![A-Za-z])")
_UNORDERED = ("", "\\{\\}")
_OF_A_FUNCTION = re.compile(r"y|[A-Za-z]\([a-z]\)")
_LETTER = re.compile(r"[A-Za-z]")


def same(answer: Form, truth: Form, decide: Decide) -> bool | None:
    """Return True if two answers are equal; None if a formula in them is undecided."""
    kinds = {answer.kind, truth.kind}
    if kinds == {"number"}:
        return answer.value == truth.value and (not (answer.unit and truth.unit) or answer.unit == truth.unit)
    if len(kinds) == 1 and answer.latex == truth.latex:
        return True
    if "words" in kinds:
        return False
    if "too large" in kinds:
        return decide(answer.latex, truth.latex)
    if "equation" in kinds:
        return _same_equations(answer, truth, decide)
    if "values" in kinds:
        return _same_lists(answer, truth, decide)
    return _same_formulas(answer, truth, decide)


def _same_formulas(answer: Form, truth: Form, decide: Decide) -> bool | None:
    if len(answer.latex) == len(truth.latex) == 1:
        return False
    if "number" in (answer.kind, truth.kind) and _RELATION.search(answer.latex + truth.latex):
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
    if answer.name and _name_the_same(answer.name, truth.name):
        values = answer.values
        last = _all(
            same(*pair, decide)
            for pair in [(values[-1], truth.values[-1]), *((value, values[-1]) for value in values[:-1])]
        )
        if last is not False:
            return last
    return False if _differ_in_case(answer.latex, truth.latex) else decide(answer.latex, truth.latex)


def _name_the_same(name: str, other: str) -> bool:
    return name == other or bool(_OF_A_FUNCTION.fullmatch(name) and _OF_A_FUNCTION.fullmatch(other))


# ---- lists ----


def _same_lists(answer: Form, truth: Form, decide: Decide) -> bool | None:
    other = truth if answer.kind == "values" else answer
    if other.kind == "formula" and _A_SET.search(other.latex):  # an interval, a point or a set, written differently
        return decide(answer.latex, truth.latex)
    if len(answer.values) != len(truth.values):
        return False
    named, truth_named = ([bool(value.name) for value in form.values] for form in (answer, truth))
    unordered = answer.brackets in _UNORDERED and truth.brackets in _UNORDERED and any(named) == any(truth_named)
    if not unordered and answer.brackets and truth.brackets and answer.brackets != truth.brackets:
        return False

    def member(first: Form, second: Form) -> bool | None:
        if first.name and second.name and first.name != second.name and "equation" not in (first.kind, second.kind):
            return False
        if first.latex.startswith("\\{") != second.latex.startswith("\\{"):  # math-verify takes {1}, {2} for {1, 2}
            return False
        return same(first, second, decide)

    values, truths = (
        sorted(form.values, key=lambda value: value.name) if any(named) != any(truth_named) else form.values
        for form in (answer, truth)
    )
    in_order = _all(member(*pair) for pair in zip(values, truths, strict=True))
    return in_order if in_order or not unordered else _in_any_order(values, truths, member)


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
