"""DAPO's line `Answer:`: every form that is read, and how two answers compare."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo_answers.latex import equal
from dagrpo_answers.verifiers.math_dapo import VERIFIER, extract, formatted

# text -> strict, flexible, exact
GOLDEN: list[tuple[str, str | None, str | None, str | None]] = [
    ("Answer: 34", "34", "34", None),
    ("answer: 34.", "34", "34", None),
    ("ANSWER:34.", "34", "34", None),
    ("**Answer:** 34", "34", "34", None),
    ("**Answer**: 34", "34", "34", None),
    ("**Answer: 34**", "34", "34", None),
    ("__Answer:__ 34", "34", "34", None),
    ("### Final answer: 34", "34", "34", None),
    ("\\textbf{Answer:} 34", "34", "34", None),
    ("\\textbf{Answer: 34.}", "34", "34", None),
    ("Answer: 33 \\fbox{34}", "33 {34}", "33 {34}", "34"),
    ("Answer:\n\n34", "34", "34", None),
    ("Answer\uff1a34", "34", "34", None),
    ("Answer: $34$", "34", "34", None),
    ("Answer: $34$.", "34", "34", None),
    ("Answer: \\(34\\)", "34", "34", None),
    ("Answer: \\boxed{34}", "34", "34", "34"),
    ("**Answer:** $\\boxed{34}$.", "34", "34", "34"),
    ("Answer: $1,234.50$", "1234.5", "1234.5", None),
    ("Answer: -7", "-7", "-7", None),
    ("Answer: 34 degrees", "34 degrees", "34 degrees", None),
    ("Answer: 1\nNo, wait.\nAnswer: 34\nThat is it.", "34", "34", None),
    ("Answer: 34\nThe answer is good.", "34", "34", None),
    ("Answer: 34\nAnswer:", "34", "34", None),
    ("\\boxed{34}", None, "34", "34"),
    ("\\boxed{1} then \\boxed{ 1,234 }", None, "1234", "1,234"),
    ("#### 34", None, "34", None),
    ("\\boxed{35}\n#### 34", None, "35", "35"),
    ("\\boxed{35}\nAnswer: 34", "34", "34", "35"),
    ("The answer is 34", None, None, None),
    ("Answer:", None, None, None),
    ("Answer: **", None, None, None),
    ("", None, None, None),
]


@pytest.mark.parametrize(("text", "strict", "flexible", "exact"), GOLDEN)
def test_an_answer_is_read_as_in_the_golden_table(
    text: str, strict: str | None, flexible: str | None, exact: str | None
) -> None:
    assert extract(text, "strict") == strict
    assert extract(text, "flexible") == flexible
    assert extract(text, "exact") == exact
    assert formatted(text) == (strict is not None)


def test_the_exact_answer_is_compared_as_it_stands() -> None:
    assert VERIFIER.literal


@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("34", "34", True),
        ("34.00", "34", True),
        ("1,234", "1234", True),
        ("1{,}234", "1234", True),
        ("1 000 000", "1000000", True),
        ("x=34", "34", True),
        ("x + y = 34", "34", None),
        ("34 degrees", "34", True),
        ("34^\\circ", "34", True),
        ("34 \\text{ cm}", "34", True),
        ("\\text{34}", "34", True),
        ("34 square units", "34", True),
        ("\\frac12", "\\frac{1}{2}", True),
        ("\\dfrac{1}{2}", "\\frac12", True),
        ("\\sqrt3", "\\sqrt{3}", True),
        ("-7", "7", False),
        ("35", "34", False),
        ("34.0000000001", "34", False),
        ("22000000000000000000000", "22000000000000000000000", True),
        ("22,000,000,000,000,000,000,000", "22000000000000000000000", True),
        ("22000000000000000000001", "22000000000000000000000", False),
        ("3 4", "34", False),
        ("33 34", "34", False),
        ("34} or {35", "34", False),
        ("34}", "34", False),
        ("2^{10}", "1024", True),
        ("34 or 35", "34", False),
        ("$34$ or $35$", "34", False),
        ("x>=34", "34", False),
        ("thirty-four", "34", False),
        ("\\sqrt{1156}", "34", None),
    ],
)
def test_answers_are_equal_different_or_left_to_math_verify(answer: str, truth: str, same: bool | None) -> None:
    assert equal(answer, truth) is same


@given(st.integers(-(10**25), 10**25), st.sampled_from(["{}", "{:,}", "${}$", "{}.00", "\\boxed{{{}}}", "{}."]))
def test_every_way_to_write_a_whole_number_is_that_number_of_any_size(number: int, written: str) -> None:
    answer = extract(f"Because.\n**Answer:** {written.format(number)}", "strict")
    assert answer == str(number)
    assert equal(answer, str(number)) is True
    assert equal(answer, str(number + 1)) is False
