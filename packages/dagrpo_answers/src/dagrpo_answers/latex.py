"""Comparison of LaTeX answers, and the check of a ground truth."""

import re
from functools import lru_cache

from dagrpo_answers.comparing import same
from dagrpo_answers.dressing import balanced
from dagrpo_answers.errors import UserError
from dagrpo_answers.forms import read
from dagrpo_answers.numbers import plain_number, truth_number
from dagrpo_answers.pool import WorkerPool
from dagrpo_answers.worker_process import Comparison

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
    return same(read(answer), expected, _undecided)


def _undecided(answer: str, ground_truth: str) -> None:
    """Leave two formulas to math-verify."""


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
