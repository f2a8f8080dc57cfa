r"""One number in every notation: the right one is paid, every other one refused, and what is no answer is paid for nothing."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packages.dagrpo_answers.tests.notations import NO_ANSWERS, TWO, WRITTEN

from dagrpo_answers import Judge
from dagrpo_answers.comparing import equal
from dagrpo_answers.forms import read
from dagrpo_answers.verifiers import math_dapo
from dagrpo_answers.verifiers.math import extract

PIECES = st.sampled_from(
    [
        "3",
        "4",
        "1",
        "234",
        ",",
        " ",
        "\\frac",
        "{",
        "}",
        "/",
        "=",
        "x",
        "\\text{ or }",
        "$",
        ".",
        "(",
        ")",
        "^",
        "\\,",
        "%",
    ]
)
OTHER_NUMBERS = st.fractions(-(10**6), 10**6, max_denominator=1000)


def ground_truths(value: Fraction) -> list[str]:
    """A value as data sets write it."""
    negative, positive = "-" if value < 0 else "", abs(value)
    if value.denominator == 1:
        return [str(value), f"{value}.0", f"{int(value):,}" if abs(value) >= 1000 else str(value)]
    fraction = f"{negative}\\frac{{{positive.numerator}}}{{{positive.denominator}}}"
    return [str(value), fraction, fraction.replace("\\frac", "\\dfrac").replace("}{", " } { ")]


@pytest.mark.parametrize("notation", WRITTEN)
@given(data=st.data(), other=OTHER_NUMBERS)
def test_a_number_in_any_notation_is_right_for_itself_and_wrong_for_every_other(
    notation: str, data: st.DataObject, other: Fraction
) -> None:
    text, value = data.draw(WRITTEN[notation])
    for truth in ground_truths(value):
        assert equal(text, truth) is True
    form = read(text)
    assert (form.kind, form.value) == ("number", value)
    near = (value + 1, -value, value * 10, value / 1000, Fraction(int(value)), 1 / value if value else Fraction(1))
    for wrong in {other, *near} - {value}:
        assert [equal(text, truth) for truth in ground_truths(wrong)] == [False] * 3


@pytest.mark.parametrize("notation", WRITTEN)
@given(data=st.data())
def test_every_place_of_an_answer_reads_the_same_number(notation: str, data: st.DataObject) -> None:
    text, value = data.draw(WRITTEN[notation])
    boxed = extract(f"So it is \\boxed{{{text}}}, of course.", "strict")
    line = math_dapo.extract(f"So it is.\nAnswer: {text}", "strict")
    tagged = extract(f"<answer>{text}</answer>", "flexible")
    assert [read(answer or "").value for answer in (boxed, line, tagged)] == [value] * 3


@pytest.mark.parametrize("kind", NO_ANSWERS)
@given(numbers=TWO, data=st.data())
def test_what_is_no_answer_is_right_for_none_of_its_numbers(
    kind: str, numbers: tuple[int, int], data: st.DataObject, judge: Judge
) -> None:
    form = data.draw(st.sampled_from(NO_ANSWERS[kind]))
    text = form.format(*numbers, 5)
    truths = [str(number) for number in numbers]
    judged = judge.judge(
        [f"\\boxed{{{text}}}", f"Answer: {text}"] * 2, truths * 2, ["math"] * 2 + ["math_dapo"] * 2, "strict"
    )
    assert "right" not in {judgement.verdict for judgement in judged}


@given(st.lists(PIECES, max_size=9))
def test_no_text_is_right_for_two_numbers(pieces: list[str]) -> None:
    truths = ["3", "4", "1", "234", "34", "3.4", "3/4", "0.75", "1234", "1.234", "81", "12", "-1", "7", "2", "3234"]
    paid = {read(truth).value for truth in truths if equal("".join(pieces), truth) is True}
    assert len(paid) <= 1
