"""GSM8K rows: the four prompt forms, the ground truth, and a row that has none."""

from pathlib import Path

import pytest

from dagrpo.data.config import Data
from dagrpo.data.datasets.gsm8k import INSTRUCTION, WITH_FEEDBACK, WITH_TOOL, to_row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.task import get_task
from dagrpo_answers.verifiers.gsm8k import equal, extract

FORMS = ("gsm8k", "gsm8k_tool", "gsm8k_feedback", "gsm8k_sft")


def _row(question: str, answer: str) -> RawRow:
    return RawRow(file="gsm8k/train.jsonl", number=17, fields={"question": question, "answer": answer})


@pytest.mark.parametrize("answer", ["The answer is 18", "#### eighteen", "####"])
def test_a_row_without_hashes_and_a_number_names_the_file_and_the_row(answer: str) -> None:
    with pytest.raises(
        ValueError, match=r"gsm8k/train\.jsonl, row 17, field `answer` has no `####` followed by a number"
    ):
        to_row(_row("How many?", answer))


@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_all_rows_and_worked_answers_that_verify(data_folder: Path, name: str) -> None:
    problems = get_task(name).load(Data(mirror=str(data_folder)))
    assert {split: len(rows) for split, rows in problems.splits.items()} == {"train": 7473, "test": 1319}
    assert problems.read == problems.expected == {"train": 7473, "test": 1319}
    for row in (*problems.splits["train"], *problems.splits["test"]):
        extracted = extract(row.answer, "strict")
        assert extracted is not None
        assert equal(extracted, row.ground_truth)
        assert (row.task, row.verifier, row.data_source) == (name, "gsm8k", "openai/gsm8k")
    assert [row.index for row in problems.splits["test"]] == list(range(1319))


def test_the_forms_differ_in_prompt_tools_and_interaction_only(data_folder: Path) -> None:
    first = {name: get_task(name).load(Data(mirror=str(data_folder))).splits["test"][0] for name in FORMS}
    question = first["gsm8k"].question
    plain = {"role": "user", "content": f"{question} {INSTRUCTION}"}
    assert first["gsm8k"].prompt == (plain,)
    assert first["gsm8k_tool"].prompt == ({"role": "system", "content": WITH_TOOL}, plain)
    assert first["gsm8k_feedback"].prompt == ({"role": "system", "content": WITH_FEEDBACK}, plain)
    assert first["gsm8k_sft"].prompt == ({"role": "user", "content": question},)
    assert {name: (row.tools, row.interaction) for name, row in first.items()} == {
        "gsm8k": ((), ""),
        "gsm8k_tool": (("answer_check",), ""),
        "gsm8k_feedback": ((), "gsm8k_feedback"),
        "gsm8k_sft": ((), ""),
    }
    assert {(row.question, row.answer, row.ground_truth) for row in first.values()} == {
        (question, first["gsm8k"].answer, "18")
    }
