"""Votes by what an answer says: one number in many notations is one candidate."""

from collections.abc import Sequence

import pytest

from dagrpo.core.types import Score
from dagrpo.evaluation.statistics import majority_correct
from dagrpo.evaluation.verdicts import votes
from dagrpo.rewards.grading import Grader
from dagrpo_answers.verifier import Extractor


def majority(
    answers: Sequence[str],
    truth: str,
    verifier: str,
    grader: Grader,
    form: str = "\\boxed{{{}}}",
    extractor: Extractor = "strict",
) -> float:
    """Whether the majority of answers to one problem is right, from their texts on."""
    texts = [form.format(answer) for answer in answers]
    scores = grader.judge(texts, [truth] * len(texts), [verifier] * len(texts), extractor)
    return majority_correct(
        votes([0] * len(scores), scores, extractor, grader), [each.verdict == "right" for each in scores]
    )


@pytest.fixture(scope="module")
def grader() -> Grader:
    return Grader(5.0, processes=1)


def test_wrong_answers_in_three_notations_beat_two_right_ones(grader: Grader) -> None:
    assert majority(["\\frac{1}{2}", "0.5", "1/2", "3", "3"], "3", "math", grader) == 0.0
    assert majority(["\\sqrt{12}", "2\\sqrt{3}", "3", "4"], "3", "math", grader) == 0.0


def test_different_wrong_answers_do_not_add_up(grader: Grader) -> None:
    assert majority(["1", "2", "4", "3", "3"], "3", "math", grader) == 1.0
    assert majority(["\\sqrt{2}", "\\sqrt{5}", "\\sqrt{7}", "3", "3"], "3", "math", grader) == 1.0


def test_texts_vote_without_case_and_articles(grader: Grader) -> None:
    answers = ["Rome", "rome.", "the Rome", "Paris", "Paris"]
    assert majority(answers, '["Paris"]', "exact_match", grader, "<answer>{}</answer>") == 0.0
    assert majority(answers, '["Rome"]', "exact_match", grader, "<answer>{}</answer>") == 1.0


def test_right_expressions_are_one_candidate_whatever_they_are(grader: Grader) -> None:
    answers = ["(3 + 5) * 3", "3 * (5 + 3)", "5 + 3", "5+3"]
    assert majority(answers, '{"numbers": [3, 3, 5], "target": 24}', "countdown", grader, "<answer>{}</answer>") == 0.5


def test_a_missing_answer_does_not_vote_and_problems_are_apart(grader: Grader) -> None:
    scores = [
        Score(extracted=None, verifier="math", verdict="missing"),
        Score(extracted="0.5", verifier="math", verdict="right"),
        Score(extracted="1/2", verifier="math", verdict="wrong"),
        Score(extracted="\\frac12", verifier="math", verdict="right"),
        Score(extracted="0.5", verifier="math", verdict="wrong"),
    ]
    assert votes([0, 0, 1, 0, 1], scores, "strict", grader) == [None, "0.5", "1/2", "0.5", "1/2"]


@pytest.mark.parametrize("answers", [("3", "D}d"), ("D}d", "3"), ("D}d", "{")])
def test_an_answer_that_could_be_no_ground_truth_votes_for_itself(answers: tuple[str, str], grader: Grader) -> None:
    """A policy that has learned little writes such, and its scores are asked for all the same."""
    scores = [Score(extracted=answer, verifier="math", verdict="wrong") for answer in answers]
    assert votes([0, 0], scores, "strict", grader) == list(answers)
