"""Countdown: an equation that makes a target from given numbers.

The ground truth is JSON: `{"numbers": [3, 4, 6], "target": 24}`. The value is exact; nothing is evaluated before the
numbers are the given ones, so an answer's cost is bounded. Powers and floor division are no answer.
"""

import json
from dataclasses import dataclass
from functools import lru_cache

from dagrpo_answers.arithmetic import parse
from dagrpo_answers.errors import UserError
from dagrpo_answers.reading import answer_line, answer_tag, only_answer_tag
from dagrpo_answers.verifier import Extractor, Verifier

LARGEST = 10**30
MOST_BITS = 1 << 14  # more than the digits of the longest expression can make

_OPERATORS = str.maketrans("\u00d7\u22c5\u00b7\u2217\u00f7", "****/")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Puzzle:
    numbers: tuple[int, ...]  # sorted
    target: int


def extract(text: str, extractor: Extractor) -> str | None:
    """strict: what stands in the last `<answer>...</answer>`, up to an `=`; flexible: that, else a line `Answer:`.

    exact: in the only `<answer>`, at the end of the text, the expression alone without `=`.
    """
    if extractor == "exact":
        return _with_ascii_operators(only_answer_tag(text))
    answer = answer_tag(text)
    if answer is None and extractor == "flexible":
        answer = answer_line(text)
    return _with_ascii_operators(answer and (answer.partition("=")[0].strip() or None))


def _with_ascii_operators(answer: str | None) -> str | None:
    return None if answer is None else answer.translate(_OPERATORS)


def formatted(text: str) -> bool:
    """Return True if there is an `<answer>` that holds an arithmetic expression."""
    answer = extract(text, "strict")
    return answer is not None and parse(answer) is not None


def equal(answer: str, ground_truth: str) -> bool:
    """Return True if an expression uses exactly the given numbers, each once, and equals the target."""
    puzzle = _puzzle(ground_truth)
    expression = parse(answer)
    if expression is None or tuple(sorted(expression.numbers)) != puzzle.numbers:
        return False
    try:
        return expression.bounded_value(MOST_BITS) == puzzle.target
    except ZeroDivisionError:
        return False


def check(ground_truth: str) -> None:
    """UserError when a ground truth is not numbers and a target in JSON."""
    _puzzle(ground_truth)


@lru_cache(maxsize=1 << 14)
def _puzzle(ground_truth: str) -> _Puzzle:
    puzzle = _read(ground_truth)
    if puzzle is None:
        raise UserError(
            f"{ground_truth[:40]!r} is not a puzzle of whole numbers from 0 and a target: "
            'write it as {"numbers": [3, 4, 6], "target": 24}.'
        )
    return puzzle


def _read(ground_truth: str) -> _Puzzle | None:
    try:
        fields = json.loads(ground_truth)
    except (ValueError, RecursionError):
        return None
    match fields:
        case {"numbers": [_, *_] as numbers, "target": target} if _is_whole(target, LARGEST) and all(
            map(_is_whole, numbers)
        ):
            return _Puzzle(numbers=tuple(sorted(numbers)), target=target)
    return None


def _is_whole(value: object, most_negative: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -most_negative <= value < LARGEST


VERIFIER = Verifier(name="countdown", extract=extract, equal=equal, formatted=formatted, check=check)
