"""AIME rows: the prompt asks for `####`, and the ground truth is an integer without padding."""

import pytest

from dagrpo.rewards.gsm8k import extract
from dagrpo.tasks.aime import AIME_2024, to_example
from dagrpo.tasks.source import Row


def _row(answer: str) -> Row:
    return Row(file="aime/aime_2024.jsonl", number=8, fields={"problem": "Find $x$.", "answer": answer})


@pytest.mark.parametrize(
    ("answer", "truth"), [("025", "25"), ("0", "0"), ("000", "0"), ("999", "999"), (" 33\n", "33")]
)
def test_the_ground_truth_is_an_integer_without_padding(answer: str, truth: str) -> None:
    example = to_example("aime_2024", AIME_2024, _row(answer), "test", 7)
    assert example.ground_truth == truth
    assert extract(example.answer, "strict") == truth


@pytest.mark.parametrize("answer", ["1000", "-1", "12.5", "x", "\uff11\uff12"])
def test_an_answer_that_is_no_integer_from_0_to_999_names_the_file_and_the_row(answer: str) -> None:
    with pytest.raises(
        ValueError, match=r"aime/aime_2024\.jsonl, row 8, field `answer` is '.*', not an integer from 0 to 999"
    ):
        to_example("aime_2024", AIME_2024, _row(answer), "test", 7)


def test_the_prompt_asks_for_the_mark_that_the_reward_reads() -> None:
    (message,) = to_example("aime_2024", AIME_2024, _row("25"), "test", 7).prompt
    assert message["content"].startswith("Find $x$.\n\n")
    assert message["content"].endswith('after "####".')
