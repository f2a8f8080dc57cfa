"""Comparison of LaTeX answers, and the check of a ground truth."""

import re
from functools import lru_cache

from dagrpo.core.errors import UserError
from dagrpo.rewards.dressing import balanced
from dagrpo.rewards.forms import RELATION, Form, read
from dagrpo.rewards.numbers import plain_number, truth_number
from dagrpo.rewards.pool import WorkerPool
from dagrpo.rewards.worker_process import Comparison

CHECK_SECONDS = 10.0  # for one ground truth, of which there are few

_WORDS = re.compile(r"(?:\\(?:text|textbf|mbox|mathrm)\{)?\(?[A-Za-z][A-Za-z ,.'-]*+\)?\}?")
_A_SET = re.compile(r"[<>=]|\\(?:le|leq|ge|geq|lt|gt|in|pm|mathbb|cup)(?![A-Za-z])")
_UNORDERED = ("", "\\{\\}")


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
    return _equal(read(answer), expected)


def _equal(answer: Form, truth: Form) -> bool | None:
    if answer.kind == truth.kind == "number":
        return answer.value == truth.value and (not (answer.unit and truth.unit) or answer.unit == truth.unit)
    if answer.latex == truth.latex and answer.kind == truth.kind:
        return True
    if "too large" in (answer.kind, truth.kind):
        return None if "words" not in (answer.kind, truth.kind) else False
    if "words" in (answer.kind, truth.kind):
        return False
    if "values" in (answer.kind, truth.kind):
        return _equal_values(answer, truth)
    if len(answer.latex) == len(truth.latex) == 1:  # math-verify takes a for A
        return False
    if "number" in (answer.kind, truth.kind) and RELATION.search(answer.latex + truth.latex):
        return False
    return True if answer.latex.replace(" ", "") == truth.latex.replace(" ", "") else None


def _equal_values(answer: Form, truth: Form) -> bool | None:
    other = truth if answer.kind == "values" else answer
    if other.kind == "formula" and _A_SET.search(other.latex):  # an interval, a point or a set, written differently
        return None
    if len(answer.values) != len(truth.values):
        return False
    unordered = answer.brackets in _UNORDERED and truth.brackets in _UNORDERED
    if not unordered and answer.brackets and truth.brackets and answer.brackets != truth.brackets:
        return False
    if _sets_in(answer) != _sets_in(truth):  # math-verify takes {1}, {2} for {1, 2}
        return False
    if any(form.kind != "number" for form in (*answer.values, *truth.values)):
        return None
    left, right = ([form.value for form in values] for values in (answer.values, truth.values))
    return sorted(left) == sorted(right) if unordered else left == right


def _sets_in(form: Form) -> int:
    return sum(value.latex.startswith("\\{") for value in form.values)


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
