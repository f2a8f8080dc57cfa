"""Ground truths of the verifiers of LaTeX: which ones can be compared with at all."""

import pytest

from dagrpo_answers.comparing import check

TRUTHS = [
    "34", "-7", "1,234", "14.9", "22000000000000000000000", "50\\%", "\\$18", "2 \\sqrt { 11 }",
    "\\frac { 28 \\sqrt 3 } { 3 }", "\\text{Evelyn}", "Evelyn", "(A)", "\\text{(A)}", "x^2 + 2x", "(1, 2)", "\\{1, 2\\}",
    "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "(-\\infty, 3]", "2^{10}", "6 + 9i", "10:45",
]  # fmt: skip
NO_TRUTHS = ["", " ", "\\frac{", "}{", "x^", "+" * 3000, "(" * 100 + "1" + ")" * 100]


@pytest.mark.parametrize("truth", TRUTHS)
def test_numbers_words_and_latex_are_ground_truths(truth: str) -> None:
    check(truth)


@pytest.mark.parametrize("truth", NO_TRUTHS)
def test_what_nothing_can_be_compared_with_is_refused_in_one_sentence(truth: str) -> None:
    with pytest.raises(
        ValueError, match=r"^[^\n]*: (correct the ground truth|give the answer as a number or in LaTeX)\.$"
    ):
        check(truth)
