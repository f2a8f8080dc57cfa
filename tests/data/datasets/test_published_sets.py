"""Data sets that verl's scripts train on, and evaluation sets, by rows in the form of the published ones."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dagrpo.core.errors import UserError
from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.raw_row import RawRow
from dagrpo.data.task import TaskRows, get_task
from dagrpo.rewards.verifiers import get_verifier

PROBLEM = {"problem": "Find $x$.", "answer": " \\frac{1}{2} ", "solution": "So $\\boxed{\\frac12}$."}
ORZ = [{"from": "human", "value": "Find $x$."}, {"from": "assistant", "ground_truth": {"value": "7", "pass_at_n": 0.5}}]
QUESTION = {"id": "train_0", "question": "who wrote it?", "golden_answers": ["Ann Lee", "A. Lee"], "data_source": "nq"}
DIALOGUE = "\n\nHuman: Hi\n\nAssistant: Hello!\n\nHuman: Why?\n\nHuman: Really?\n\nAssistant: Because."
CHOICES = {
    "question": "Which?",
    "options": ["one ", "two", "three"],
    "answer": "C",
    "category": "law",
    "cot_content": "",
}
GPQA = {"Question": "Which?", "Correct Answer": "right\n", "Incorrect Answer 1": "wrong, 1", "Incorrect Answer 2": "wrong 2",
        "Incorrect Answer 3": "wrong 3", "High-level domain": "Physics"}  # fmt: skip
IFEVAL = {"prompt": "Write 3 words. No commas.", "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
          "kwargs": [{"num_words": None}, {"relation": "at least", "num_words": 3}]}  # fmt: skip


def _lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _csv(row: dict[str, str]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, row)
    writer.writeheader()
    writer.writerow(row)
    return text.getvalue().encode()


def _load(folder: Path, task: str, files: dict[str, bytes]) -> TaskRows:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return get_task(task).load(Data(mirror=str(folder), max_train=9, max_test=9))


def _row(folder: Path, task: str, files: dict[str, bytes], split: str = "test") -> Row:
    (row,) = _load(folder, task, files).splits[split]
    get_verifier(row.verifier).check(row.ground_truth)
    return row


def test_deepscaler_is_a_list_of_problems_in_json(tmp_path: Path) -> None:
    row = _row(tmp_path, "deepscaler", {"deepscaler/train.json": json.dumps([PROBLEM]).encode()}, "train")
    assert (row.question, row.ground_truth, row.verifier) == ("Find $x$.", "\\frac{1}{2}", "math")
    assert get_task("deepscaler").source.rows == {"train": 40_315}  # type: ignore[union-attr]


def test_orz_rows_are_lists_of_turns_and_its_commit_is_unknown(tmp_path: Path) -> None:
    row = _row(tmp_path, "orz", {"orz/train.json": json.dumps([ORZ]).encode()}, "train")
    assert (row.question, row.ground_truth) == ("Find $x$.", "7")
    with pytest.raises(UserError, match=r"has no commit .* set data\.mirror to a folder with orz/train\.json"):
        get_task("orz").load(Data())


def test_openr1_mm_has_a_picture_and_the_answer_in_tags(tmp_path: Path) -> None:
    (tmp_path / "openr1_mm").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "openr1_mm/a.png")
    row = {"problem": "What is AB?", "solution": "<think>5</think>\n<answer> 5 cm </answer>", "image": "a.png"}
    made = _row(tmp_path, "openr1_mm", {"openr1_mm/train.jsonl": _lines([row])}, "train")
    assert (made.ground_truth, len(made.images)) == ("5 cm", 1)
    assert made.prompt[0]["content"].startswith("<image>What is AB?")
    with pytest.raises(UserError, match=r"row 1, field `solution` has no <answer>"):
        _load(tmp_path, "openr1_mm", {"openr1_mm/train.jsonl": _lines([{**row, "solution": "5"}])})


def test_hh_rlhf_is_a_conversation_up_to_the_preferred_answer(tmp_path: Path) -> None:
    rows = _lines([{"chosen": DIALOGUE, "rejected": DIALOGUE}])
    row = _row(tmp_path, "hh_rlhf", {f"hh_rlhf/{split}.jsonl.gz": gzip.compress(rows) for split in ("train", "test")})
    assert [turn["role"] for turn in row.prompt] == ["user", "assistant", "user"]
    assert (row.prompt[-1]["content"], row.answer) == ("Why?\n\nReally?", "Because.")
    assert not get_verifier(row.verifier).judges
    with pytest.raises(UserError, match=r"test\.jsonl\.gz is damaged"):
        _load(tmp_path, "hh_rlhf", {"hh_rlhf/test.jsonl.gz": gzip.compress(rows)[:-9]})


def test_nq_hotpotqa_accepts_every_answer_and_may_search(tmp_path: Path) -> None:
    files = {f"nq_hotpotqa/{split}.jsonl": _lines([QUESTION]) for split in ("train", "test")}
    row = _row(tmp_path, "nq_hotpotqa", files)
    assert (row.tools, row.ability, json.loads(row.ground_truth)) == (("search",), "nq", ["Ann Lee", "A. Lee"])
    assert get_verifier("exact_match").equal("a. lee", row.ground_truth)


def test_mmlu_pro_lists_the_options_by_letter(tmp_path: Path) -> None:
    row = _row(tmp_path, "mmlu_pro", {"mmlu_pro/test.jsonl": _lines([CHOICES])})
    assert row.prompt[0]["content"].endswith("Question:\nWhich?\nOptions:\nA. one\nB. two\nC. three")
    assert (row.ground_truth, row.ability) == ("C", "law")
    with pytest.raises(UserError, match=r"field `answer` is no letter of its 3 options"):
        _load(tmp_path, "mmlu_pro", {"mmlu_pro/test.jsonl": _lines([{**CHOICES, "answer": "D"}])})


def test_gpqa_shuffles_the_choices_by_the_question_alone(tmp_path: Path) -> None:
    row = _row(tmp_path, "gpqa", {"gpqa/gpqa_diamond.csv": _csv(GPQA)})
    assert f"({row.ground_truth}) right\n" in row.prompt[0]["content"] + "\n"
    letters = {
        get_task("gpqa").load(Data(mirror=str(tmp_path), max_test=9)).splits["test"][0].ground_truth for _ in range(3)
    }
    assert letters == {row.ground_truth}
    from dagrpo.data.datasets.gpqa import to_row

    drawn = [to_row(RawRow(file="f", number=n, fields={**GPQA, "Question": f"{n}?"})).ground_truth for n in range(200)]
    assert all(30 < drawn.count(letter) < 70 for letter in "ABCD")


def test_ifeval_keeps_the_parameters_that_are_given(tmp_path: Path) -> None:
    row = _row(tmp_path, "ifeval", {"ifeval/test.jsonl": _lines([IFEVAL])})
    assert json.loads(row.ground_truth)[0] == ["punctuation:no_comma", {}]
    with pytest.raises(UserError, match=r"`kwargs` does not hold parameters for each instruction"):
        _load(tmp_path, "ifeval", {"ifeval/test.jsonl": _lines([{**IFEVAL, "kwargs": []}])})


@pytest.mark.parametrize("content", [b"{}", b"[1]", b"[", b"[" * 100_000, b"\xff"])
def test_json_that_is_no_list_of_rows_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UserError, match=r"train\.json is not (valid JSON|a list of rows)"):
        _load(tmp_path, "deepscaler", {"deepscaler/train.json": content})
