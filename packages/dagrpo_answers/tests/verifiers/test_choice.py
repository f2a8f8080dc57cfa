"""Letters of options: a stated one counts, two do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo_answers.verifiers.choice import VERIFIER, extract


@pytest.mark.parametrize(
    ("text", "letter"),
    [("The answer is (C).", "C"), ("the answer is C", "C"), ("**Answer:** B", "B"), ("The answer is: **(D)**", "D"),
     ("The answer is $\\boxed{J}$.", "J"), ("The answer is \\boxed{\\text{A}}", "A"), ("The answer is J. Quantitative.", "J"),
     ("The answer is (A). No, the answer is (B).", "B"), ("The answer is A good question", None), ("The answer is A or B", None),
     ("The answer is (A) and (B)", None), ("Answer: A, B", None), ("The answer is K", None), ("the answer is a", None), ("(C)", None),
     ("The answer is (A), since (B) is wrong", "A"), ("The answer is Apple", None), ("The answer is C because it is", "C"),
     ("The answer is A because it is", "A"),
     ("The answer is I think", None), ("**Answer**: C", "C"), ("The answer is \\(C\\)", "C"), ("The answer is C, I think", "C"),
     ("The answer is (C) (A is wrong)", "C"), ("The answer is (A) (B) (C) (D)", None), ("The answer is (A)(B)", None),
     ("The answer is A; B", None), ("The answer is (A) | (B)", None), ("The answer is \\(A\\) or \\(B\\)", None),
     ("The answer is \\text{A} and \\text{B}", None)],
)  # fmt: skip
def test_strict_takes_the_last_letter_that_is_stated(text: str, letter: str | None) -> None:
    assert extract(text, "strict") == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [("So it is (B), not (A) but (C)", "C"), ("Thus\n\n**D**", "D"), ("\\boxed{E}", "E"), ("\\boxed{\\text{C}}", "C"),
     ("So\n\\(D\\)", "D"), ("The answer is A or B (C)", None),
     ("D is", None)],
)  # fmt: skip
def test_flexible_takes_a_box_a_last_line_or_brackets_too(text: str, letter: str | None) -> None:
    assert extract(text, "flexible") == letter


def test_exact_takes_nothing_with_text_after_it() -> None:
    assert extract("The answer is (C).", "exact") == "C"
    assert extract("The answer is (C), I think.", "exact") is None


@given(st.text(alphabet="answer is:*_$()[]{}ABJ \n\\boxed", max_size=200))
def test_what_is_found_is_a_letter(text: str) -> None:
    for extractor in ("strict", "flexible", "exact"):
        letter = extract(text, extractor)
        assert letter is None or VERIFIER.equal(letter, letter)
