"""Simulated users: one that knows whether an answer is right, and one that only asks for its form."""

import pytest
from tests.rollout.problems import task_row

from dagrpo.tools.simulated_users import INTERACTIONS
from dagrpo.tools.simulated_users.answer_form import ASK
from dagrpo.tools.simulated_users.gsm8k_feedback import WRONG


def _said(user: str, *answers: str, truth: str = "18", verifier: str = "gsm8k") -> str | None:
    return INTERACTIONS.get(user).reply(task_row(ground_truth=truth, verifier=verifier), answers)


@pytest.mark.parametrize("answer", ["9 * 2 = 18\n#### 18", "#### $18.00", "#### 17\n#### 18"])
def test_a_right_answer_ends_the_dialogue(answer: str) -> None:
    assert _said("gsm8k_feedback", "#### 17", answer) is None


@pytest.mark.parametrize("answer", ["#### 17", "18", "", "#### 18\n#### 17"])
def test_a_wrong_or_missing_answer_is_to_be_given_again(answer: str) -> None:
    assert _said("gsm8k_feedback", answer) == WRONG
    assert _said("gsm8k_feedback", "#### 18", answer) == WRONG


@pytest.mark.parametrize("text", ["<think>#### 18</think>#### 17", "<think>#### 18", "#### 18</think>"])
def test_a_thought_is_not_heard(text: str) -> None:
    assert _said("gsm8k_feedback", text) == WRONG
    assert (_said("answer_form", text) == ASK) is not text.endswith("#### 17")


def test_the_form_of_an_answer_is_asked_for_once() -> None:
    assert _said("answer_form", "It is 18.") == ASK
    assert _said("answer_form", "It is 18.", "It is 18.") is None
    assert _said("answer_form", "It is 18.", "#### 18") is None


@pytest.mark.parametrize(
    ("verifier", "truth", "answer"),
    [("gsm8k", "18", "#### {}"), ("geo3k", "34", "<think>a</think>\\boxed{{{}}}"), ("math_dapo", "34", "Answer: {}")],
)
def test_who_asks_for_the_form_does_not_tell_right_from_wrong(verifier: str, truth: str, answer: str) -> None:
    for given in (truth, "999"):
        assert _said("answer_form", answer.format(given), truth=truth, verifier=verifier) is None
        assert _said("answer_form", f"It is {given}.", truth=truth, verifier=verifier) == ASK


def test_only_the_one_that_tells_is_an_oracle() -> None:
    assert {name: INTERACTIONS.get(name).oracle for name in INTERACTIONS.own_names()} == {
        "answer_form": False,
        "gsm8k_feedback": True,
    }
