"""Readings of gsm8k, math_dapo, geo3k and choice: what holds for any number and any text."""

import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagrpo_answers import comparing
from dagrpo_answers.verifier import Extractor
from dagrpo_answers.verifiers import choice, geo3k, math_dapo
from dagrpo_answers.verifiers.gsm8k import equal, extract

MINUS = "\u2212"


@pytest.mark.parametrize("text", ["", "eighteen", "1e999999999", "NaN", "Infinity", "3/4", "1_000"])
def test_a_ground_truth_that_is_no_plain_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a plain number"):
        equal("18", text)


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
def test_any_text_gives_a_normalised_number_or_nothing(text: str, extractor: Extractor) -> None:
    extracted = extract(text, extractor)
    if extracted is not None:
        assert extracted.isascii()
        assert extract(f"#### {extracted}", "strict") == extracted
        assert extract(extracted, "flexible") == extracted
        assert equal(extracted, extracted)


@given(st.integers(-(10**25), 10**25), st.sampled_from(["{}", "{:,}", "${}$", "{}.00", "\\boxed{{{}}}", "{}."]))
def test_every_way_to_write_a_whole_number_is_that_number_of_any_size(number: int, written: str) -> None:
    answer = math_dapo.extract(f"Because.\n**Answer:** {written.format(number)}", "strict")
    assert answer == str(number)
    assert comparing.equal(answer, str(number)) is True
    assert comparing.equal(answer, str(number + 1)) is False
    assert math_dapo.VERIFIER.literal, "the exact answer is compared as it stands"


FORM = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)
PIECES = st.lists(st.sampled_from(["<think>", "</think>", "\\boxed{", "}", "{", "1", "\n", " "]), max_size=10)


@settings(max_examples=500)
@given(PIECES.map("".join))
def test_the_form_of_geometry_3k_is_the_published_one_read_in_linear_time(text: str) -> None:
    assert geo3k.formatted(text) == (FORM.fullmatch(text) is not None)


@given(st.text(alphabet="answer is:*_$()[]{}ABJ \n\\boxed", max_size=200))
def test_what_is_found_among_choices_is_a_letter(text: str) -> None:
    for extractor in ("strict", "flexible", "exact"):
        letter = choice.extract(text, extractor)
        assert letter is None or choice.VERIFIER.equal(letter, letter)
