"""What the verifiers of LaTeX answers share: the fast exact comparison, and the check of a ground truth."""

import re
from collections.abc import Callable
from functools import lru_cache

from dagrpo.errors import UserError
from dagrpo.rewards import hendrycks
from dagrpo.rewards.numbers import plain_number, truth_number
from dagrpo.rewards.pool import Comparison, WorkerPool
from dagrpo.rewards.reading import balanced

CHECK_SECONDS = 10.0  # for one ground truth: they come from data sets, and are few

_WORDS = re.compile(r"(?:\\(?:text|textbf|mbox|mathrm)\{)?\(?[A-Za-z][A-Za-z ,.'-]*+\)?\}?")
_SEVERAL = re.compile(r"[0-9]\s++[0-9]++(?!/)")  # numbers side by side, which math-verify would add up; not 5 1/2
_GROUPED = re.compile(r"[-+]?[0-9]{1,3}(?:(?: |\\,|\{,\})[0-9]{3})++")  # 1 000 000
_GROUP_MARKS = re.compile(r" |\\,|\{,\}")


def compare(
    answer: str, ground_truth: str, normalise: Callable[[str], str], normalise_truth: Callable[[str], str]
) -> bool | None:
    """Equal texts, equal normalised texts, or two plain numbers compared exactly; None for anything else."""
    if answer == ground_truth:
        return True
    truth = truth_number(ground_truth)
    number = plain_number(_GROUP_MARKS.sub("", answer) if _GROUPED.fullmatch(answer) else answer)
    if number is not None and truth is not None:
        return number == truth
    left, right = normalise(answer), normalise_truth(ground_truth)
    if left == right:
        return left != ""
    number, truth = plain_number(left), truth_number(right)
    if number is not None and truth is not None:
        return number == truth
    return False if _SEVERAL.search(answer) or not balanced(answer) else None


def check(ground_truth: str) -> None:
    """UserError when a ground truth is neither a number, nor words, nor LaTeX that math-verify can read."""
    text = ground_truth.strip()
    if not text:
        raise UserError("the ground truth is empty: give the answer as a number or in LaTeX.")
    plain = truth_number(text) is not None or plain_number(hendrycks.normalise(text)) is not None
    if plain or _WORDS.fullmatch(text):
        return
    if _checking().compare([Comparison(answer=None, ground_truth=text)]) != ["right"]:
        raise UserError(no_latex(text))


def no_latex(ground_truth: str) -> str:
    """What is wrong with a ground truth that math-verify cannot read."""
    return f"{ground_truth[:40]!r} is neither a number nor LaTeX that math-verify can read: correct the ground truth."


@lru_cache(maxsize=1)
def _checking() -> WorkerPool:
    """The one worker of this process that checks ground truths; it ends with the process."""
    return WorkerPool(seconds=CHECK_SECONDS, processes=1)
