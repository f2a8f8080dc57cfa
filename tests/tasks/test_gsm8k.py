"""GSM8K rows: the prompt, the ground truth, and a row that has none."""

import pytest

from dagrpo.tasks.gsm8k import SOURCE, to_example
from dagrpo.tasks.registry import get_task
from dagrpo.tasks.source import Row


def _row(question: str, answer: str) -> Row:
    return Row(file="gsm8k/train.jsonl", number=17, fields={"question": question, "answer": answer})


def test_the_prompt_is_the_question_and_the_instruction() -> None:
    example = to_example(_row("How many eggs?", "9 * 2 = <<9*2=18>>18\n#### 18"), "train", 16)
    (message,) = example.prompt
    assert message == {
        "role": "user",
        "content": 'How many eggs? Think step by step and give the final answer after "####".',
    }
    assert (example.task, example.split, example.index, example.data_source) == ("gsm8k", "train", 16, "openai/gsm8k")
    assert (example.question, example.answer) == ("How many eggs?", "9 * 2 = <<9*2=18>>18\n#### 18")


@pytest.mark.parametrize(("tail", "truth"), [("18", "18"), ("1,080", "1080"), ("-5", "-5"), ("2.50", "2.5")])
def test_the_ground_truth_is_the_number_after_the_hashes_without_commas(tail: str, truth: str) -> None:
    assert to_example(_row("How many?", f"Some 3 steps\n#### {tail}"), "train", 0).ground_truth == truth


@pytest.mark.parametrize("answer", ["The answer is 18", "#### eighteen", "####"])
def test_a_row_without_hashes_and_a_number_names_the_file_and_the_row(answer: str) -> None:
    with pytest.raises(
        ValueError, match=r"gsm8k/train\.jsonl, row 17, field `answer` has no `####` followed by a number"
    ):
        to_example(_row("How many?", answer), "train", 0)


def test_an_unknown_task_is_an_error_that_gives_the_nearest_known_one() -> None:
    with pytest.raises(
        ValueError, match=r"`gsm8` is not a task: the nearest known one is `gsm8k`; correct experiment\.tasks"
    ):
        get_task("gsm8")
    with pytest.raises(ValueError, match="the known ones are arithmetic, gsm8k, aime_2024, aime_2025"):
        get_task("zzz")


def test_the_source_is_the_main_configuration() -> None:
    assert (SOURCE.repository, SOURCE.configuration) == ("openai/gsm8k", "main")
