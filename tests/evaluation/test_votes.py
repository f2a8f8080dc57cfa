"""Votes by what an answer says: one number in many notations is one candidate."""

from collections.abc import Sequence

import pytest

from dagrpo.core.section import Extractor
from dagrpo.evaluation.statistics import majority_correct
from dagrpo.evaluation.verdicts import Ballot, votes
from dagrpo.rewards.grading import Grader


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
    judged = grader.judge(texts, [truth] * len(texts), [verifier] * len(texts), extractor)
    ballots = [Ballot(problem=0, verifier=verifier, answer=each.answer, verdict=each.verdict) for each in judged]
    return majority_correct(votes(ballots, extractor, grader), [each.verdict == "right" for each in judged])


@pytest.fixture(scope="module")
def grader() -> Grader:
    return Grader(5.0, processes=1)


def test_right_answers_in_three_notations_beat_two_wrong_ones(grader: Grader) -> None:
    assert majority(["\\frac{1}{2}", "0.5", "1/2", "3", "3"], "1/2", "math", grader) == 1.0


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


def test_where_answers_are_compared_as_texts_they_vote_as_texts(grader: Grader) -> None:
    assert majority(["34", "34.0", "34.0"], "34", "math_dapo", grader, extractor="exact") == 0.0


def test_a_missing_answer_does_not_vote_and_problems_are_apart(grader: Grader) -> None:
    ballots = [
        Ballot(problem=0, verifier="math", answer=None, verdict="missing"),
        Ballot(problem=0, verifier="math", answer="0.5", verdict="right"),
        Ballot(problem=1, verifier="math", answer="1/2", verdict="wrong"),
        Ballot(problem=0, verifier="math", answer="\\frac12", verdict="right"),
        Ballot(problem=1, verifier="math", answer="0.5", verdict="wrong"),
    ]
    assert votes(ballots, "strict", grader) == [None, "0.5", "1/2", "0.5", "1/2"]


@pytest.mark.parametrize("answers", [("3", "D}d"), ("D}d", "3"), ("D}d", "{")])
def test_an_answer_that_could_be_no_ground_truth_votes_for_itself(answers: tuple[str, str], grader: Grader) -> None:
    """A policy that has learned little writes such, and its scores are asked for all the same."""
    ballots = [Ballot(problem=0, verifier="math", answer=answer, verdict="wrong") for answer in answers]
    assert votes(ballots, "strict", grader) == list(answers)
