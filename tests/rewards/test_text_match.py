"""Short answers in words: what does not count, and what does."""

import pytest

from dagrpo.rewards.text_match import extract, normalise
from dagrpo.rewards.verifiers.exact_match import VERIFIER as EXACT_MATCH
from dagrpo.rewards.verifiers.exact_match import equal
from dagrpo.rewards.verifiers.substring_match import equal as holds

# text -> strict, flexible, exact
GOLDEN: list[tuple[str, str | None, str | None, str | None]] = [
    ("<answer>Paris</answer>", "Paris", "Paris", "Paris"),
    ("<answer> Paris\n</answer>\n", "Paris", "Paris", "Paris"),
    ("<answer>Rome</answer> or <answer>Paris</answer>", "Paris", "Paris", None),
    ("<answer>Rome <answer>Paris</answer>", "Paris", "Paris", None),
    ("<answer>Paris</answer> of course", "Paris", "Paris", None),
    ("<answer>Paris</answer> <answer>Rome", "Paris", "Paris", None),
    ("Answer: Paris.", None, "Paris", None),
    ("<answer></answer>", None, None, None),
    ("<answer>Paris", None, None, None),
    ("Paris", None, None, None),
]


@pytest.mark.parametrize(("text", "strict", "flexible", "exact"), GOLDEN)
def test_an_answer_is_read_as_in_the_golden_table(
    text: str, strict: str | None, flexible: str | None, exact: str | None
) -> None:
    assert extract(text, "strict") == strict
    assert extract(text, "flexible") == flexible
    assert extract(text, "exact") == exact


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The City of Paris!", "city of paris"),
        ("an  apple, a pear", "apple pear"),
        ("U.S.A.", "usa"),
        ("1,000", "1000"),
        ("-5 degrees", "-5 degrees"),
        ("2010-2012", "20102012"),
        ("3.5.", "3.5"),
        ("well-known", "wellknown"),
        ("\u201cParis\u201d \u2014 yes", "paris yes"),
        ("Cafe\u0301", "caf\u00e9"),
        ("\u2212\uff15", "-5"),
    ],
)
def test_case_punctuation_articles_and_space_do_not_count(text: str, normalised: str) -> None:
    assert normalise(text) == normalised


@pytest.mark.parametrize(
    ("answer", "same", "inside"),
    [
        ("paris", True, True),
        ("The city of Paris.", True, True),
        ("Paris, France", False, True),
        ("Parisian", False, False),
        ("Rome", False, False),
        ("", False, False),
    ],
)
def test_an_exact_match_is_all_of_the_answer_and_a_substring_match_whole_words_of_it(
    answer: str, same: bool, inside: bool
) -> None:
    truth = '["Paris", "City of Paris"]'
    assert equal(answer, truth) is same
    assert holds(answer, truth) is inside


@pytest.mark.parametrize("number", ["18", "8", "3", "5", "-3.5"])
def test_a_part_of_a_number_is_no_match(number: str) -> None:
    assert holds("it is 3.518 or -218", f'["{number}"]') is False


def test_scripts_without_spaces_match_inside_a_sentence() -> None:
    assert holds("\u6cd5\u56fd\u7684\u9996\u90fd\u662f\u5df4\u9ece", '["\u5df4\u9ece"]') is True


@pytest.mark.parametrize("truth", ["", "Paris", '"Paris"', "[]", "[1]", '["Paris", ""]', '["the"]', "{}", "[" * 10_000])
def test_a_ground_truth_that_is_no_list_of_texts_is_refused(truth: str) -> None:
    with pytest.raises(
        ValueError, match=r'is not a JSON list of texts .*: write it as \["Paris", "City of Paris"\]\.$'
    ):
        EXACT_MATCH.check(truth)
