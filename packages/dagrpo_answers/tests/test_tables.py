"""Tables of texts: each is judged as a person judged it, read as in extractions.tsv, compared as in equalities; short answers."""

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packages.dagrpo_answers.tests.conftest import FACTOR, Growth
from packages.dagrpo_answers.tests.table import rows

from dagrpo_answers import Judge
from dagrpo_answers.comparing import check
from dagrpo_answers.text_match import normalise
from dagrpo_answers.verifier import Extractor
from dagrpo_answers.verifiers import get_verifier
from dagrpo_answers.verifiers.exact_match import VERIFIER as EXACT_MATCH
from dagrpo_answers.verifiers.exact_match import equal
from dagrpo_answers.verifiers.substring_match import equal as holds

ROWS = [*rows(), *rows("readings.tsv")]


@pytest.mark.parametrize("kind", dict.fromkeys(row.kind for row in ROWS))
def test_every_text_has_the_verdict_of_its_table(kind: str, judge: Judge) -> None:
    table = [row for row in ROWS if row.kind == kind]
    (extractor,) = {row.extractor for row in table}
    judged = judge.judge(
        [row.text for row in table],
        [row.ground_truth for row in table],
        [row.verifier for row in table],
        extractor,
    )
    assert [
        (row.ground_truth, row.text, score.answer, score.verdict)
        for row, score in zip(table, judged, strict=True)
        if (score.verdict == "right") != row.right
    ] == []


def _sections(name: str) -> dict[str, list[list[str]]]:
    """Return the rows of each verifier."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    sections = (section.split("\n") for section in text.removeprefix("# ").rstrip("\n").split("\n# "))
    return {verifier: [row.replace("\u23ce", "\n").split("\t") for row in section] for verifier, *section in sections}


EXTRACTIONS, EQUALITIES = _sections("extractions.tsv"), _sections("equalities.tsv")


@pytest.mark.parametrize("name", EXTRACTIONS)
def test_every_text_is_read_as_in_its_table(name: str) -> None:
    verifier = get_verifier(name)
    for *expected, row in EXTRACTIONS[name]:
        text = row.replace("\u2409", "\t")
        for extractor, answer in zip(get_args(Extractor), expected, strict=True):
            if answer != "\u00b7":
                assert verifier.extract(text, extractor) == (None if answer == "\u2205" else answer), (text, extractor)
        assert verifier.formatted(text) == (verifier.extract(text, "strict") is not None)


@pytest.mark.parametrize("name", EQUALITIES)
def test_answers_are_equal_different_or_left_to_math_verify_as_in_the_table(name: str) -> None:
    same = {"+": True, "-": False, "?": None}
    for sign, truth, answer in EQUALITIES[name]:
        assert get_verifier(name).equal(answer, truth) is same[sign], (answer, truth)


NORMALISED = [
    ("The City of Paris!", "city of paris"), ("an  apple, a pear", "apple pear"), ("U.S.A.", "usa"), ("1,000", "1000"),
    ("-5 degrees", "-5 degrees"), ("2010-2012", "2010-2012"), ("3.5.", "3.5"), ("3 / 5", "3/5"), ("1+2", "1+2"),
    ("2\u00b3", "2^3"), ("3\u00bd", "3 1/2"), ("12:30", "12:30"), ("> 5", ">5"), ("\u2260 5", "\u22605"), ("x^2", "x^2"),
    ("1, 2", "1 2"), ("$5.", "5"), ("Paris,France", "paris france"), ("Paris.France", "paris france"),
    ("<b>Paris</b>", "paris"), ("\\boxed{Paris}", "paris"), ("don\u2019t", "dont"), ("well-known", "wellknown"),
    ("\u201cParis\u201d \u2014 yes", "paris yes"), ("Cafe\u0301", "caf\u00e9"), ("\u2212\uff15", "-5"),
]  # fmt: skip
SAME = ("paris", "The city of Paris.", "<b>Paris</b>", "\\boxed{Paris}")
INSIDE = ("Paris, France", "Paris,France", "Paris/France", "\u201cParis\u201d\u2014France")
OTHER = ("Paris2", "Parisian", "Rome", "")


def test_case_punctuation_articles_and_space_do_not_count() -> None:
    assert [(text, normalise(text)) for text, _ in NORMALISED] == NORMALISED


def test_an_exact_match_is_all_of_the_answer_and_a_substring_match_whole_words_of_it() -> None:
    truth = '["Paris", "City of Paris"]'
    assert [answer for answer in (*SAME, *INSIDE, *OTHER) if equal(answer, truth)] == [*SAME]
    assert [answer for answer in (*SAME, *INSIDE, *OTHER) if holds(answer, truth)] == [*SAME, *INSIDE]


OPERATORS = st.sampled_from(["/", "+", "^", "*", ":", "\u00d7", "\u00f7", "\u00b7", "-", " / ", " + ", "**", "="])


@given(st.integers(0, 999), OPERATORS, st.integers(0, 999))
def test_a_sign_between_numbers_makes_no_longer_number_of_them(left: int, operator: str, right: int) -> None:
    text = f"{left}{operator}{right}"
    assert equal(text, json.dumps([text])) is True
    assert equal(text, json.dumps([f"{left}{right}"])) is False
    assert equal(f"{left}{right}", json.dumps([text])) is False


@given(
    st.lists(st.sampled_from(["a", "b", "ab", "c-d", "3/4", "\u5df4"]), max_size=12),
    st.sampled_from([" ", ", ", ",", "; ", " / "]),
)
def test_whole_words_are_found_and_no_parts_of_them(words: list[str], separator: str) -> None:
    answer = f"x{separator}" + separator.join(words)
    for word in ("b", "ab", "c-d"):
        assert holds(answer, json.dumps([word])) is (word in words)


def test_a_long_text_is_searched_for_a_long_one_in_linear_time(growth: Growth) -> None:
    # Each occurrence of the periodic text ends inside a word, and the next one begins before it.
    truth = json.dumps(["bb b " * 200 + "b"])
    assert holds("bb b " * 200 + "b", truth)
    assert growth(lambda text: holds(text, truth), lambda length: "bb b " * (length // 5)) < 3 * FACTOR


@pytest.mark.parametrize("truth", ["", "Paris", '"Paris"', "[]", "[1]", '["Paris", ""]', '["the"]', "{}", "[" * 10_000])
def test_a_ground_truth_that_is_no_list_of_texts_is_refused(truth: str) -> None:
    with pytest.raises(
        ValueError, match=r'is not a JSON list of texts .*: write it as \["Paris", "City of Paris"\]\.$'
    ):
        EXACT_MATCH.check(truth)


TRUTHS = [
    "34", "-7", "1,234", "14.9", "22000000000000000000000", "50\\%", "\\$18", "2 \\sqrt { 11 }",
    "\\frac { 28 \\sqrt 3 } { 3 }", "\\text{Evelyn}", "Evelyn", "(A)", "\\text{(A)}", "x^2 + 2x", "(1, 2)", "\\{1, 2\\}",
    "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "(-\\infty, 3]", "2^{10}", "6 + 9i", "10:45",
]  # fmt: skip
NO_TRUTHS = ["", " ", "\\frac{", "}{", "x^", "+" * 3000, "(" * 100 + "1" + ")" * 100]


def test_numbers_words_and_latex_are_ground_truths_and_what_nothing_can_be_compared_with_is_refused() -> None:
    for truth in TRUTHS:
        check(truth)
    for truth in NO_TRUTHS:
        with pytest.raises(
            ValueError, match=r"^[^\n]*: (correct the ground truth|give the answer as a number or in LaTeX)\.$"
        ):
            check(truth)
