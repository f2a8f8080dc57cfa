r"""Answers in `\boxed{...}`, and the normalisation of MATH."""

import pytest

from dagrpo_answers.latex import check, equal
from dagrpo_answers.reading import last_boxed
from dagrpo_answers.verifiers.math import extract, formatted

# text -> strict, flexible
GOLDEN: list[tuple[str, str | None, str | None]] = [
    ("\\boxed{34}", "34", "34"),
    ("\\boxed {34}", "34", "34"),
    ("\\fbox{34}", "34", "34"),
    ("\\boxed{1} or \\boxed{2}", "1 or 2", "1 or 2"),
    ("$\\boxed{1}$, $\\boxed{2}$ and \\(\\boxed{3}\\).", "1, 2, 3", "1, 2, 3"),
    ("\\boxed{1}$ \\text{ or } $\\boxed{1}", "1", "1"),
    ("\\boxed{1} and then \\boxed{2}", "2", "2"),
    ("\\boxed{1}\\boxed{2}", "2", "2"),
    ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", "\\frac{1}{2}"),
    ("\\boxed{\\boxed{34}}", "34", "34"),
    ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}", "\\{1, 2\\}"),
    ("\\boxed{\\left\\{x\\right.}", "\\left\\{x\\right.", "\\left\\{x\\right."),
    ("\\boxed{$1,000.0$}", "1000", "1000"),
    ("\\boxed{34} as asked in \\boxed{}", "34", "34"),
    ("\\boxed{34} as \\boxed asks", "34", "34"),
    ("\\boxed{34} and \\boxed{35", None, "35"),
    ("\\boxed{}", None, None),
    ("\\boxed 34", "34", "34"),
    ("$\\boxed 34$.", "34", "34"),
    ("\\boxed 1,234. That is it.", "1234", "1234"),
    ("$\\boxed\\frac12$", "\\frac12", "\\frac12"),
    ("It is 1/2.", None, "1/2"),
    ("It is 7 1/2.", None, "7 1/2"),
    ("It is 2^10", None, "2^10"),
    ("It is 1e5", None, "1e5"),
    ("at 12:30", None, "12:30"),
    ("It is 5 million dollars.", None, "5 million"),
    ("It is 16 - 3", None, None),
    ("the point (3, 4)", None, None),
    ("Answer: 34", None, "34"),
    ("Answer: x\n<answer>34</answer>", None, "x"),
    ("<answer>34</answer>", None, "34"),
    ("<answer>\\boxed{34</answer>", None, "\\boxed{34"),
    ("So it is $\\frac{1}{2}$ apples.", None, "\\frac{1}{2}"),
    ("So $x = 1$ and $$y = 2$$", None, "y = 2"),
    ("So it is \\[34\\] and that is all", None, "34"),
    ("It costs $5 and then $6.", None, "6"),
    ("So it is -3/4.", None, "-3/4"),
    ("So it is 1,000.", None, "1000"),
    ("nothing", None, None),
    ("$", None, None),
    ("$$", None, None),
]


@pytest.mark.parametrize(("text", "strict", "flexible"), GOLDEN)
def test_an_answer_is_read_as_in_the_golden_table(text: str, strict: str | None, flexible: str | None) -> None:
    assert extract(text, "strict") == strict
    assert extract(text, "exact") == strict
    assert extract(text, "flexible") == flexible
    assert formatted(text) == (last_boxed(text) is not None)


@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("\\dfrac{1}{2}", "\\frac{1}{2}", True),
        ("\\tfrac12", "\\frac{1}{2}", True),
        ("1/2", "\\frac{1}{2}", True),
        ("-1/2", "-\\frac{1}{2}", True),
        ("0.5", "\\frac{1}{2}", True),
        (".5", "0.50", True),
        ("\\left(1, 2\\right)", "(1,2)", True),
        ("50\\%", "50", True),
        ("\\$18", "18", True),
        ("90^\\circ", "90", True),
        ("90^{\\circ}", "90", True),
        ("5 \\text{ cm}^2", "5", True),
        ("\\text{Evelyn}", "Evelyn", True),
        ("x=5", "5", True),
        ("2\\sqrt{11}", "2 \\sqrt { 11 }", True),
        ("\\frac{28\\sqrt3}{3}", "\\frac { 28 \\sqrt 3 } { 3 }", True),
        ("10,080", "10080", True),
        ("5", "6", False),
        ("\\begin{pmatrix}11\\\\ 2\\end{pmatrix}", "\\begin{pmatrix}1\\\\ 12\\end{pmatrix}", None),
        ("\\frac{2}{4}", "\\frac{1}{2}", True),
        ("\\sqrt{2}", "2", None),
    ],
)
def test_the_answers_of_math_are_normalised_before_they_are_compared(
    answer: str, truth: str, same: bool | None
) -> None:
    assert equal(answer, truth) is same


def test_math_verify_is_asked_about_formulas_alone() -> None:
    assert equal("\\frac{1}{2}", "\\frac{1}{2}") is True
    assert equal("14.90", "14.9") is True
    assert equal("14.91", "14.9") is False
    assert equal("\\dfrac{1}{2}", "\\frac{1}{2}") is True
    assert equal("\\sqrt{4}", "2") is None


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
