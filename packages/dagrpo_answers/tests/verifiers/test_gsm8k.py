"""Reading the number that ends a GSM8K solution: a golden table, and what holds for any number and any text."""

from decimal import Decimal
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo_answers.verifiers.gsm8k import equal, extract

MINUS = "\u2212"
FULL_WIDTH_18 = "\uff11\uff18"

# text -> the answer after the last ####, the last number
GOLDEN: list[tuple[str, str | None, str | None]] = [
    ("9 * 2 = 18\n#### 18", "18", "18"),
    ("#### 18.", "18", "18"),
    ("#### 18.00", "18", "18"),
    ("#### 018", "18", "18"),
    ("####18", "18", "18"),
    ("####\t18\n", "18", "18"),
    ("#### $18", "18", "18"),
    ("#### \\$18", "18", "18"),
    ("**#### 18**", "18", "18"),
    ("#### **18**", "18", "18"),
    ("#### `18`", "18", "18"),
    ('#### "18"', "18", "18"),
    ("#### <18>", "18", "18"),
    ("#### [18]", "18", "18"),
    ("#### = 18", "18", "18"),
    ("#### 18%", "18", "18"),
    ("#### 18 dollars", "18", "18"),
    ("#### 18km", "18", "18"),
    ("#### 18, which is right", "18", "18"),
    ("#### 18 (see step 2)", "18", "2"),
    ("#### 1,000", "1000", "1000"),
    ("#### 1,234,567.50", "1234567.5", "1234567.5"),
    ("#### 1\uff0c000", "1000", "1000"),
    ("#### .5", "0.5", "0.5"),
    ("#### 0.50", "0.5", "0.5"),
    ("#### -3", "-3", "-3"),
    (f"#### {MINUS}3", "-3", "-3"),
    ("#### -$3", "-3", "-3"),
    ("#### $-3", "-3", "-3"),
    ("#### -0.0", "0", "0"),
    ("#### +3", "3", "3"),
    (f"#### {FULL_WIDTH_18}", "18", "18"),
    ("#### \uff0d\uff11\uff18\uff0e\uff15", "-18.5", "-18.5"),
    ("#### 17\nNo, wait.\n#### 18", "18", "18"),
    ("##### 18", "18", "18"),
    ("The answer is 18.", None, "18"),
    ("16-3=13", None, "13"),
    ("16 - 3", None, None),
    ("16-3", None, None),
    ("x = -3", None, "-3"),
    ("1, 2 and 3, 4", None, "4"),
    ("the answer is...5", None, "5"),
    ("born on 2024-05-06", None, None),
    ("#### x = 18", None, "18"),
    ("#### The answer is 18", None, "18"),
    ("####\n18", None, "18"),
    ("#### 18\n####", None, "18"),
    ("### 18", None, "18"),
    ("#### 3/4", None, None),
    ("#### 5 1/2", None, None),
    ("#### 2^10", None, None),
    ("#### 1e5", None, None),
    ("#### 12:30", None, None),
    ("#### 10-15", None, None),
    ("#### 10\u201315", None, None),
    ("#### 3,4", None, None),
    ("#### 1.2.3", None, None),
    ("#### --3", None, None),
    ("####", None, None),
    ("no number", None, None),
    (".,-$", None, None),
    ("", None, None),
]


@pytest.mark.parametrize(("text", "strict", "flexible"), GOLDEN)
def test_an_answer_is_read_as_in_the_golden_table(text: str, strict: str | None, flexible: str | None) -> None:
    assert extract(text, "strict") == strict
    assert extract(text, "flexible") == flexible


def test_an_answer_far_before_the_end_is_still_read() -> None:
    assert extract("#### 18\n" + "That was easy. " * 1000, "strict") == "18"
    assert extract("18" + " and so on" * 1000, "flexible") == "18"


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("18", "18.00", True),
        ("18", "18.", True),
        ("1000", "1,000", True),
        ("-3", f"{MINUS}3", True),
        ("0", "-0", True),
        ("0.1", ".10", True),
        ("18", "18.0000000000000000000000000000000000000001", False),
        ("12345678901234567890123456789012345678", "12345678901234567890123456789012345679", False),
        ("18", "-18", False),
    ],
)
def test_numbers_are_compared_by_value_and_exactly(left: str, right: str, same: bool) -> None:
    assert equal(left, right) is same
    assert equal(right, left) is same


@pytest.mark.parametrize("text", ["", "eighteen", "1e999999999", "NaN", "Infinity", "3/4", "1_000"])
def test_a_ground_truth_that_is_no_plain_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a plain number"):
        equal("18", text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 18", "18"),
        ("#### 18.", "18"),
        ("#### $18.00", "18"),
        ("#### **18**", "18"),
        ("#### 18 dollars", "18"),
        ("#### 18 km/h.", "18"),
        ("#### 18 square feet", "18"),
        ("#### 18%", "18"),
        ("#### 18\u20ac", "18"),
        ("#### 18\nThat was easy, like 1, 2, 3.", "18"),
        ("#### 18 or 19", None),
        ("#### 18 or so", None),
        ("#### 18 19", None),
        ("#### 18, 19", None),
        ("#### 18 = 9 * 2", None),
        ("#### 18 is my answer", None),
        ("#### 18 (see step 2)", None),
        ("#### 18 dollars that he has got to pay", None),
        ("#### 3/4", None),
        ("18", None),
    ],
)
def test_an_exact_answer_has_nothing_but_its_unit_beside_it(text: str, answer: str | None) -> None:
    assert extract(text, "exact") == answer


@pytest.mark.parametrize("text", ["\\boxed{34}", "**Answer:** 34", "Answer: 34.", "It is **34**", "$34$"])
def test_the_flexible_answer_needs_no_mark(text: str) -> None:
    assert extract(text, "flexible") == "34"
    assert extract(text, "strict") is None


def _written(number: Decimal, thousands: bool, minus: str, zeros: int) -> str:
    text = f"{abs(number):,f}" if thousands else f"{abs(number):f}"
    text += ("" if "." in text else ".") + "0" * zeros if zeros else ""
    return (minus if number < 0 else "") + text


NUMBERS = st.decimals(min_value=-(10**12), max_value=10**12, places=3)


@given(
    NUMBERS, st.booleans(), st.sampled_from(["-", MINUS, "\uff0d"]), st.integers(0, 3), st.sampled_from(["", "$", "**"])
)
def test_every_way_to_write_a_number_reads_as_that_number(
    number: Decimal, thousands: bool, minus: str, zeros: int, before: str
) -> None:
    text = f"So it is\n#### {before}{_written(number, thousands, minus, zeros)} apples"
    extracted = extract(text, "strict")
    assert extracted is not None
    assert Decimal(extracted) == number
    assert equal(extracted, str(number))


@given(NUMBERS, NUMBERS)
def test_numbers_are_equal_only_when_their_values_are(left: Decimal, right: Decimal) -> None:
    assert equal(str(left), str(right)) is (left == right)


ANY_TEXT = st.text() | st.text(alphabet="0123456789.,-#$ \n\uff11\uff0c\u2212e/^*")


@given(ANY_TEXT, st.sampled_from(["strict", "flexible"]))
def test_any_text_gives_a_normalised_number_or_nothing(text: str, extractor: Literal["strict", "flexible"]) -> None:
    extracted = extract(text, extractor)
    if extracted is not None:
        assert extracted.isascii()
        assert extract(f"#### {extracted}", "strict") == extracted
        assert extract(extracted, "flexible") == extracted
        assert equal(extracted, extracted)


@given(ANY_TEXT)
def test_without_a_mark_there_is_no_strict_answer(text: str) -> None:
    assert extract(text.replace("#", ""), "strict") is None
