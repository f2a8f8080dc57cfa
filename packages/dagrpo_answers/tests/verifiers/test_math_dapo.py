"""DAPO's line `Answer:`: every form that is read, and how two answers compare."""

from hypothesis import given
from hypothesis import strategies as st

from dagrpo_answers.comparing import equal
from dagrpo_answers.verifiers.math_dapo import VERIFIER, extract


def test_the_exact_answer_is_compared_as_it_stands() -> None:
    assert VERIFIER.literal


@given(st.integers(-(10**25), 10**25), st.sampled_from(["{}", "{:,}", "${}$", "{}.00", "\\boxed{{{}}}", "{}."]))
def test_every_way_to_write_a_whole_number_is_that_number_of_any_size(number: int, written: str) -> None:
    answer = extract(f"Because.\n**Answer:** {written.format(number)}", "strict")
    assert answer == str(number)
    assert equal(answer, str(number)) is True
    assert equal(answer, str(number + 1)) is False
