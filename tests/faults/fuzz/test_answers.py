"""Answers against two oracles: exact fractions, which the texts are made from, and math-verify where floating point agrees with it.

The whole hunt is 10,000 texts and more; what came of them is printed by verdict.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from math_verify import parse, verify
from packages.dagrpo_answers.tests.notations import NO_ANSWERS, TWO, WRITTEN
from packages.dagrpo_answers.tests.test_notations import ground_truths
from tests.faults.fuzz.formulas import Formula, formulas, spelled
from tests.faults.fuzz.inputs import fuzzed

from dagrpo.rewards.grading import Grader
from dagrpo_answers.comparing import equal
from dagrpo_answers.verifier import Extractor, Verdict

TEXTS_OF_AN_EXAMPLE = 3
PLACES: tuple[tuple[str, Extractor, str], ...] = (
    ("math", "strict", "So \\boxed{{{}}}."),
    ("math", "strict", "$\\boxed{{{}}}$"),
    ("geo3k", "flexible", "It is so.\nAnswer: {}"),
    ("math", "flexible", "<answer>{}</answer>"),
    ("math_dapo", "strict", "So it is.\n**Answer:** {}"),
    ("math_dapo", "flexible", "So \\boxed{{{}}}"),
)
FOUND: Counter[tuple[str, str, Verdict]] = Counter()


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    logging.disable(logging.CRITICAL)  # math-verify's complaints
    with Grader(verify_seconds=10.0, processes=1) as grader:
        yield grader
    logging.disable(logging.NOTSET)
    print("\noracle, what it says, the verdict: texts")
    for (oracle, expected, verdict), count in sorted(FOUND.items()):
        print(f"{oracle}, {expected}, {verdict}: {count:,}")


def _verdict(grader: Grader, text: str, truth: str, place: tuple[str, Extractor, str]) -> Verdict:
    verifier, extractor, form = place
    return grader.judge([form.format(text)], [truth], [verifier], extractor)[0].verdict


@fuzzed
@given(data=st.data())
def test_numbers_are_judged_as_exact_fractions_are(grader: Grader, data: st.DataObject) -> None:
    for _ in range(TEXTS_OF_AN_EXAMPLE):
        text, value = data.draw(WRITTEN[data.draw(st.sampled_from(sorted(WRITTEN)))])
        near = [value, value, value + 1, -value, value / 10, value + Fraction(1, 1000), Fraction(round(value, 2))]
        wanted = data.draw(st.sampled_from(near) | st.fractions(-1000, 1000, max_denominator=100))
        truth = data.draw(st.sampled_from(ground_truths(wanted)))
        verdict = _verdict(grader, text, truth, data.draw(st.sampled_from(PLACES)))
        expected: Verdict = "right" if value == wanted else "wrong"
        FOUND["exact fractions", expected, verdict] += 1
        assert verdict == expected


@fuzzed
@given(data=st.data())
def test_formulas_are_judged_as_math_verify_and_floating_point_agree(grader: Grader, data: st.DataObject) -> None:
    formula = data.draw(formulas())
    other: Formula = data.draw(st.sampled_from([formula, formula]) | formulas())
    text = data.draw(spelled(formula.latex))
    same = math.isclose(formula.value, other.value, rel_tol=1e-9)
    sure = verify(_parsed(other.latex), _parsed(formula.latex), timeout_seconds=None) == same
    verdict = _verdict(grader, text, other.latex, data.draw(st.sampled_from(PLACES)))
    FOUND["math-verify" if sure else "math-verify is wrong", "right" if same else "wrong", verdict] += 1
    if sure:
        assert verdict == ("right" if same else "wrong")


def _parsed(latex: str) -> list[object]:
    return list(parse(f"${latex}$", parsing_timeout=None, fallback_mode="no_fallback"))


@fuzzed
@given(numbers=TWO, data=st.data())
def test_what_is_no_answer_is_right_for_no_number(
    grader: Grader, numbers: tuple[int, int], data: st.DataObject
) -> None:
    form = data.draw(st.sampled_from(NO_ANSWERS[data.draw(st.sampled_from(sorted(NO_ANSWERS)))]))
    truth = str(data.draw(st.sampled_from(numbers)))
    verdict = _verdict(grader, form.format(*numbers, 7), truth, data.draw(st.sampled_from(PLACES)))
    FOUND["exact fractions", "no answer", verdict] += 1
    assert verdict != "right"


PIECES = (
    "3 4 1 234 0 . , / \\frac { } 2 = x + - \\cdot ^ ( ) % \\% $ e \\text{or} or not \\, \\; ½ ² ° km \\sqrt \\pi 10 \\times "
    "\\overline{3} : < > ~ ; \\{ \\} ! \u2212"
)
FRACTIONS = [Fraction(3, 4), Fraction(1, 2), Fraction(7, 2), Fraction(1, 3), Fraction(17, 5)]
VALUES = [*map(Fraction, (3, 4, 34, 234, 3234, 1234, 10, 30, 12, 0, 1, -1, -3, 7, 81, 64)), *FRACTIONS]


@fuzzed
@given(st.lists(st.sampled_from([*PIECES.split(), " "]), min_size=1, max_size=8).map("".join))
def test_no_heap_of_pieces_is_right_for_two_numbers(grader: Grader, text: str) -> None:
    right = [value for value in VALUES if equal(text, str(value)) is True]
    FOUND["exact fractions", "any one number", "right" if right else "wrong"] += 1
    assert len(right) <= 1
