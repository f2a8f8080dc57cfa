r"""Published scorers: verdicts that follow from their published rules, by hand. tests/oracles asks the programs themselves."""

import pytest

from dagrpo_answers import Judge
from dagrpo_answers.scorers import scorers
from dagrpo_answers.scorers.hendrycks_math import boxed, normalised

SCORERS = scorers()
GSM8K = ("verl_gsm8k", "verl_gsm8k_flexible", "lm_eval_gsm8k_strict", "lm_eval_gsm8k_flexible")
MATH = ("verl_math_dapo", "verl_math_dapo_or_box", "hendrycks_math", "math_verify")
CHOICES = ("lm_eval_mmlu_pro", "mmlu_pro", "lm_eval_gpqa_strict")
# completion, ground truth, the scorers of choices, in the order above, that find it right
OF_CHOICES: list[tuple[str, str, str]] = [
    ("The answer is (C).", "C", "111"),
    ("The answer is C", "C", "110"),  # GPQA's rule leaves out the last character
    ("The answer is (C)", "C", "111"),
    ("the answer is (B). No: the answer is (C).", "C", "000"),
    ("Answer: C", "C", "010"),
    ("It is (A), or rather (C)", "C", "010"),
    ("**The answer is (C)**", "C", "111"),
    ("I do not know", "I", "010"),
    ("None of them", "C", "000"),
]
# completion, ground truth, whether Search-R1's rule finds it right
OF_SEARCH: list[tuple[str, str, bool]] = [
    ("<answer> The Beatles! </answer>", '["Beatles", "x"]', True),
    ("<answer>a</answer> <answer>b\n</answer>", '["b"]', True),
    ("<answer>Paris,France</answer>", '["Paris France"]', False),
    ("Beatles", '["Beatles"]', False),
]
# completion, ground truth, the scorers of GSM8K and of MATH, in the order above, that find it right
GOLDEN: list[tuple[str, str, str, str]] = [
    ("So it is.\n#### 18", "18", "1111", "0001"),
    ("#### 1,000", "1000", "1011", "0001"),
    ("#### 18.", "18", "0011", "0001"),
    ("#### $18", "18", "0101", "0001"),
    ("#### 18\n" + "x" * 300, "18", "0011", "0001"),
    ("#### 17\n#### 18", "18", "1101", "0001"),
    ("#### 18.00", "18", "0000", "0001"),
    ("It is 18 apples", "18", "0101", "0001"),
    ("It is 18.", "18", "0001", "0001"),
    ("#### 18 of 20", "18", "1010", "0000"),
    ("####18", "18", "0101", "0000"),
    ("So it is.", "18", "0000", "0000"),
    ("Answer: 34", "34", "0101", "1101"),
    ("Answer: $34$", "34", "0101", "1101"),
    ("Answer: $34$.", "34", "0101", "1101"),
    ("Answer: 34 degrees", "34", "0101", "1101"),
    ("Answer: 3 4", "34", "0000", "1100"),
    ("Answer: 1,234", "1234", "0001", "1101"),
    ("Answer: x = 34", "34", "0101", "1101"),
    ("\\boxed{34}", "34", "0101", "0111"),
    ("Answer: \\boxed{34}", "34", "0101", "1111"),
    ("\\boxed{34}" + " " * 100, "34", "0101", "0011"),
    ("Answer: 35\n\\boxed{34}", "34", "0101", "0011"),
    ("\\boxed{0.5}", "\\frac{1}{2}", "0000", "0011"),
    ("\\boxed{.50}", "\\frac{1}{2}", "0000", "0001"),
    ("\\boxed{\\frac12}", "\\frac{1}{2}", "0000", "0011"),
    ("\\boxed{\\frac{2}{4}}", "\\frac{1}{2}", "0000", "0001"),
    ("\\boxed{1/2}", "\\frac{1}{2}", "0000", "0011"),
    ("\\boxed{5\\text{ cm}}", "5", "0101", "0011"),
    ("\\boxed{x = 5}", "5", "0101", "0011"),
    ("\\boxed{5} or $6$", "5", "0000", "0111"),
    ("$\\boxed 5$", "5", "0101", "0011"),
]


@pytest.mark.parametrize("place", range(8))
def test_a_scorer_has_the_verdicts_of_its_published_rule(place: int, judge: Judge) -> None:
    name = (*GSM8K, *MATH)[place]
    texts, truths = [case[0] for case in GOLDEN], [case[1] for case in GOLDEN]
    verdicts = judge.judge_as_published(texts, truths, SCORERS[name])
    expected = [(of_gsm8k + of_math)[place] == "1" for _, _, of_gsm8k, of_math in GOLDEN]
    assert [text for text, right, hand in zip(texts, verdicts, expected, strict=True) if right != hand] == []


@pytest.mark.parametrize("place", range(3))
def test_a_scorer_of_choices_has_the_verdicts_of_its_published_rule(place: int) -> None:
    right = SCORERS[CHOICES[place]].right
    assert [text for text, truth, by in OF_CHOICES if right(text, truth) != (by[place] == "1")] == []


def test_search_r1s_exact_match_is_the_published_one() -> None:
    right = SCORERS["verl_search_r1"].right
    assert [text for text, truth, by_hand in OF_SEARCH if right(text, truth) != by_hand] == []


def test_all_scorers_have_a_golden_case_and_a_source_with_its_license() -> None:
    assert sorted((*GSM8K, *MATH, *CHOICES, "verl_search_r1")) == sorted(SCORERS)
    for name in SCORERS:
        assert any(license in SCORERS[name].source for license in ("(MIT)", "(Apache-2.0)"))


def test_maths_normalisation_is_the_published_one_step_by_step() -> None:
    assert normalised("\\dfrac 1 2") == "\\frac{1}{2}"
    assert normalised("\\tfrac{3}4") == "\\frac{3}4"
    assert normalised("2\\sqrt3 ") == "2\\sqrt{3}"
    assert normalised("\\left( 1,\\!000 \\right)") == "(1,000)"
    assert normalised("90^{\\circ}") == normalised("90^\\circ") == "90"
    assert normalised("k = .5") == "\\frac{1}{2}"
    assert normalised("-3/4") == "\\frac{-3}{4}"
    assert boxed("\\boxed{1} and \\boxed{\\frac{1}{2}}") == "\\frac{1}{2}"
    assert boxed("\\boxed{1} and \\fbox{2}") == "1"
    assert boxed("\\boxed{1") is None
    assert boxed("\\fbox{1}") is None


def test_what_the_library_does_not_decide_in_time_is_undecided_and_the_others_are_judged() -> None:
    texts = ["\\boxed{9^{9^{9^9}}}", "It is $\\frac{2}{4}$", "(" * 100_000]
    with Judge(0.5, 2) as judge:
        verdicts = judge.judge_as_published(texts, ["1/2"] * 3, SCORERS["math_verify"])
    assert verdicts[:2] == [None, True]
    assert verdicts[2] is not True


HOSTILE = (
    *("9", "1,", "#### 1 ", "Answer: ", "\\boxed{", "\\boxed ", "{", "}", "$", "\\frac", "\\sqrt", "=", "9/"),
    "\\boxed{1}",
)


@pytest.mark.parametrize("name", [name for name in SCORERS if name != "math_verify"])
def test_a_long_text_ends_a_scorer_soon(name: str) -> None:
    """A quadratic one would take hours."""
    right = SCORERS[name].right
    for piece in HOSTILE:
        text = piece * (400_000 // len(piece))
        right(text, "1")
        right("\\boxed{" + text + "}", "1")
