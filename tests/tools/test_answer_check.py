"""The answer check: the problem's own verifier decides, whatever form the answer is given in."""

import asyncio
import threading

import pytest
from tests.rollout.problems import task_row
from tests.tools.calls import called, context

from dagrpo.rewards.grading import Grader
from dagrpo.tools import ToolFailure
from dagrpo.tools.answer_check import TOOL, AnswerCheck


@pytest.mark.parametrize(
    ("verifier", "truth", "answer", "verdict"),
    [
        ("gsm8k", "18", "#### 18", "right"),
        ("gsm8k", "1080", "$1,080", "right"),
        ("gsm8k", "18", "17", "wrong"),
        ("geo3k", "34", "\\boxed{34}", "right"),
        ("geo3k", "2 \\sqrt { 3 }", "\\sqrt{12}", "right"),  # only math-verify can compare them
        ("math_dapo", "34", "34", "right"),
        ("math_dapo", "34", "Answer: 33", "wrong"),
        ("countdown", '{"numbers": [3, 4, 6], "target": 13}', "3 + 4 + 6", "right"),
        ("countdown", '{"numbers": [3, 4, 6], "target": 13}', "13", "wrong"),
        ("exact_match", '["Torva"]', "Torva", "right"),
    ],
)
def test_the_verifier_of_the_problem_decides(verifier: str, truth: str, answer: str, verdict: str) -> None:
    problem = task_row(verifier=verifier, ground_truth=truth)
    assert called("answer_check", problem=problem, answer=answer) == verdict
    assert TOOL.oracle


@pytest.mark.parametrize("answer", ["", "eighteen", "####", "{", "}{", "{answer}"])
def test_an_answer_that_cannot_be_read_is_told(answer: str) -> None:
    with pytest.raises(ToolFailure, match="No answer can be read"):
        called("answer_check", problem=task_row(verifier="gsm8k", ground_truth="18"), answer=answer)


def test_an_answer_that_cannot_be_compared_in_time_is_told() -> None:
    problem = task_row(verifier="geo3k", ground_truth="2\\sqrt{3}")
    with pytest.raises(ToolFailure, match="takes too long"):
        called("answer_check", problem=problem, answer="(" * 100 + "x" + ")" * 100)


def test_nobody_waits_for_a_slow_comparison() -> None:
    """The loop goes on while the grader is held up in its thread."""
    held = threading.Event()

    class Slow(Grader):
        def judge(self, *row: object) -> list[object]:  # type: ignore[override]
            assert held.wait(20)
            return super().judge(*row)  # type: ignore[arg-type, return-value]

    async def meanwhile() -> str:
        with Slow(2.0) as grader:
            call = asyncio.create_task(AnswerCheck(grader).call("answer_check", {"answer": "3"}, context()))
            await asyncio.sleep(0.01)
            assert not call.done()
            held.set()
            return await call

    assert asyncio.run(meanwhile()) == "right"
