"""Data sets by rows in the form of the published ones: mathematics, code, choices, instructions, searches, dialogues."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.data.preparing import mirror_of

from dagrpo.core.errors import UserError
from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.datasets import choices, countdown
from dagrpo.data.datasets.mathematics import INSTRUCTION, math_problem
from dagrpo.data.raw_row import RawRow
from dagrpo.data.reading import COPIES_BATCH_ROWS
from dagrpo.data.task import TaskRows, get_task
from dagrpo.rewards.verifiers import get_verifier
from dagrpo_answers.unit_tests.tests_of_row import CallCase, CodeCase, InputCase, read_tests

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
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def add(a, b):\n    """Return the sum of two whole numbers that are both given as arguments of this one function."""\n',
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "entry_point": "add",
}
MBPP: dict[str, Any] = {
    "text": "Write a function to add.",
    "code": "def add(a, b):\r\n    return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert add(0, 0) == 0"],
    "test_setup_code": "import math",
}


def _csv(row: dict[str, str]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, row)
    writer.writeheader()
    writer.writerow(row)
    return text.getvalue().encode()


def _load(folder: Path, task: str, files: dict[str, Any], **limits: int) -> TaskRows:
    return get_task(task).load(mirror_of(folder, files).model_copy(update=limits))


def _row(folder: Path, task: str, files: dict[str, Any], split: str = "test") -> Row:
    (row,) = _load(folder, task, files).splits[split]
    get_verifier(row.verifier).check(row.ground_truth)
    return row


@pytest.mark.parametrize(
    ("solution", "truth"),
    [
        ("So $x = \\boxed{2}$.", "2"),
        ("First \\boxed{1}, then \\boxed{\\frac{3}{4}}.", "\\frac{3}{4}"),
        ("It is \\boxed{\\left\\{1, \\sqrt{2}\\right\\}}.", "\\left\\{1, \\sqrt{2}\\right\\}"),
        ("Hence $\\fbox{\\text{Tuesday}}$.", "\\text{Tuesday}"),
        ("Thus $\\boxed 7$.", "7"),
        *((solution, None) for solution in ("It is 2.", "\\boxed{}", "\\boxed{2")),
    ],
)
def test_maths_ground_truth_stands_in_the_last_box(solution: str, truth: str | None) -> None:
    row = RawRow(file="math/train.jsonl", number=3, fields={"problem": "Find $x$.", "solution": solution})
    if truth is None:
        with pytest.raises(ValueError, match=r"math/train\.jsonl, row 3, field `solution` has no \\boxed"):
            math_problem(row)
        return
    problem = math_problem(row)
    assert (problem.question, problem.answer, problem.ground_truth) == ("Find $x$.", solution, truth)
    assert problem.prompt == ({"role": "user", "content": f"Find $x$.\n\n{INSTRUCTION}"},)


def test_math_has_two_splits_and_math_500_one_with_the_answer_in_its_own_column(tmp_path: Path) -> None:
    problems = _load(tmp_path, "math", {f"math/{split}.jsonl": [PROBLEM] for split in ("train", "test")})
    assert problems.expected == {"train": 7500, "test": 5000}
    assert [problems.splits[split][0].ground_truth for split in ("train", "test")] == ["\\frac12"] * 2
    assert not problems.held_out
    problems = _load(tmp_path, "math_500", {"math_500/test.jsonl": [PROBLEM | {"subject": "Precalculus", "level": 2}]})
    (row,) = problems.splits["test"]
    assert (row.ground_truth, row.answer, row.verifier) == ("\\frac{1}{2}", PROBLEM["solution"], "math")
    assert problems.expected == {"train": 0, "test": 500}


def test_bigmaths_pass_rate_is_the_one_that_was_measured_or_unknown(tmp_path: Path) -> None:
    def load(*rates: float | None) -> TaskRows:
        rows = [{"problem": f"Find {i}.", "answer": " 4 ", "llama8b_solve_rate": rate} for i, rate in enumerate(rates)]
        return _load(tmp_path, "bigmath", {"bigmath/train.parquet": rows})

    problems = load(0.25, None, 1.0)
    train = problems.splits["train"]
    assert [row.pass_rate for row in train] == [0.25, None, 1.0]
    assert {(row.ground_truth, row.answer, row.verifier) for row in train} == {("4", "\\boxed{4}", "math")}
    assert (problems.held_out, problems.expected) == (True, {"test": 0})
    with pytest.raises(ValueError, match=r"row 2, field `llama8b_solve_rate` is .*, not a number from 0 to 1"):
        load(0.5, 1.5)


def test_the_first_solution_of_openmath_stands_for_all(tmp_path: Path) -> None:
    rows = [
        {"problem": f"Find ${name}$.", "expected_answer": answer, "generated_solution": solution}
        for name, answer, solution in (("x", "1", "Easy."), ("y", "\\frac{1}{2}", "Hm."), ("x", "1", "Hard."))
    ]
    problems = _load(tmp_path, "openmath", {"openmath/train.parquet": rows}, held_out=1)
    assert [(row.ground_truth, row.answer) for row in problems.splits["train"]] == [
        ("1", "Easy."),
        ("\\frac{1}{2}", "Hm."),
    ]
    assert problems.read == {"train": 3, "test": 0}


def test_reading_openmath_ends_with_the_train_and_the_held_out_problems(tmp_path: Path) -> None:
    rows = [{"problem": f"Find {i}.", "expected_answer": "1"} for i in range(60_000)]
    problems = _load(tmp_path, "openmath", {"openmath/train.parquet": rows}, max_train=5, held_out=2)
    assert len(problems.splits["train"]) == 7
    assert problems.splits["train"][0].answer == "\\boxed{1}"
    assert problems.read["train"] == COPIES_BATCH_ROWS < 60_000  # one part of the file, and not the next
    assert problems.held_out


def test_countdowns_ground_truth_is_read_by_its_verifier(tmp_path: Path) -> None:
    rows = [{"target": 98, "nums": [44, 19, 35]}, {"target": 64, "nums": [63, 95, 96]}]
    problems = _load(tmp_path, "countdown", {"countdown/train.parquet": rows})
    first, second = (row.ground_truth for row in problems.splits["train"])
    assert (first, second) == ('{"numbers": [44, 19, 35], "target": 98}', '{"numbers": [63, 95, 96], "target": 64}')
    assert (problems.held_out, problems.expected) == (True, {"train": 490_364, "test": 0})
    assert get_verifier("countdown").equal("44 + 19 + 35", first) is True
    for numbers, target, fault in (([1, 2.5], 98, "`numbers` is .* not a list of int"), ([1], "98", "`target` is str")):
        with pytest.raises(ValueError, match=rf"f, row 2, field {fault}"):
            countdown.to_row(RawRow(file="f", number=2, fields={"numbers": numbers, "target": target}))


def test_deepscaler_is_a_list_of_problems_in_json(tmp_path: Path) -> None:
    row = _row(tmp_path, "deepscaler", {"deepscaler/train.json": json.dumps([PROBLEM]).encode()}, "train")
    assert (row.question, row.ground_truth, row.verifier) == ("Find $x$.", "\\frac{1}{2}", "math")
    for content in (b"{}", b"[1]", b"[", b"[" * 100_000, b"\xff"):
        with pytest.raises(UserError, match=r"train\.json is not (valid JSON|a list of rows)"):
            _load(tmp_path, "deepscaler", {"deepscaler/train.json": content})


def test_orz_rows_are_lists_of_turns_and_its_commit_is_unknown(tmp_path: Path) -> None:
    row = _row(tmp_path, "orz", {"orz/train.json": json.dumps([ORZ]).encode()}, "train")
    assert (row.question, row.ground_truth) == ("Find $x$.", "7")
    with pytest.raises(UserError, match=r"has no commit .* set data\.mirror to a folder with orz/train\.json"):
        get_task("orz").load(Data())


def test_openr1_mm_has_a_picture_and_the_answer_in_tags(tmp_path: Path) -> None:
    (tmp_path / "openr1_mm").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "openr1_mm/a.png")
    row = {"problem": "What is AB?", "solution": "<think>5</think>\n<answer> 5 cm </answer>", "image": "a.png"}
    made = _row(tmp_path, "openr1_mm", {"openr1_mm/train.jsonl": [row]}, "train")
    assert (made.ground_truth, len(made.images)) == ("5 cm", 1)
    assert made.prompt[0]["content"].startswith("<image>What is AB?")
    with pytest.raises(UserError, match=r"row 1, field `solution` has no <answer>"):
        _load(tmp_path, "openr1_mm", {"openr1_mm/train.jsonl": [{**row, "solution": "5"}]})


def test_hh_rlhf_is_a_conversation_up_to_the_preferred_answer(tmp_path: Path) -> None:
    rows = gzip.compress(json.dumps({"chosen": DIALOGUE, "rejected": DIALOGUE}).encode() + b"\n")
    row = _row(tmp_path, "hh_rlhf", {f"hh_rlhf/{split}.jsonl.gz": rows for split in ("train", "test")})
    assert [turn["role"] for turn in row.prompt] == ["user", "assistant", "user"]
    assert (row.prompt[-1]["content"], row.answer) == ("Why?\n\nReally?", "Because.")
    assert not get_verifier(row.verifier).judges
    with pytest.raises(UserError, match=r"test\.jsonl\.gz is damaged"):
        _load(tmp_path, "hh_rlhf", {"hh_rlhf/test.jsonl.gz": rows[:-9]})


def test_nq_hotpotqa_accepts_every_answer_and_may_search(tmp_path: Path) -> None:
    row = _row(tmp_path, "nq_hotpotqa", {f"nq_hotpotqa/{split}.jsonl": [QUESTION] for split in ("train", "test")})
    assert (row.tools, row.ability, json.loads(row.ground_truth)) == (("search",), "nq", ["Ann Lee", "A. Lee"])
    assert get_verifier("exact_match").equal("a. lee", row.ground_truth)


def test_mmlu_pro_lists_the_options_by_letter(tmp_path: Path) -> None:
    row = _row(tmp_path, "mmlu_pro", {"mmlu_pro/test.jsonl": [CHOICES]})
    assert row.prompt[0]["content"].endswith("Question:\nWhich?\nOptions:\nA. one\nB. two\nC. three")
    assert (row.ground_truth, row.ability) == ("C", "law")
    with pytest.raises(UserError, match=r"field `answer` is no letter of its 3 options"):
        _load(tmp_path, "mmlu_pro", {"mmlu_pro/test.jsonl": [{**CHOICES, "answer": "D"}]})


def test_gpqa_shuffles_the_choices_by_the_question_alone(tmp_path: Path) -> None:
    files = {"gpqa/gpqa_diamond.csv": _csv(GPQA)}
    row = _row(tmp_path, "gpqa", files)
    assert f"({row.ground_truth}) right\n" in row.prompt[0]["content"] + "\n"
    assert _row(tmp_path, "gpqa", files) == row
    rows = [RawRow(file="f", number=n, fields={**GPQA, "Question": f"{n}?"}) for n in range(200)]
    drawn = [choices.gpqa_question(row).ground_truth for row in rows]
    assert all(30 < drawn.count(letter) < 70 for letter in "ABCD")


def test_ifeval_keeps_the_parameters_that_are_given(tmp_path: Path) -> None:
    row = _row(tmp_path, "ifeval", {"ifeval/test.jsonl": [IFEVAL]})
    assert json.loads(row.ground_truth)[0] == ["punctuation:no_comma", {}]
    with pytest.raises(UserError, match=r"`kwargs` does not hold parameters for each instruction"):
        _load(tmp_path, "ifeval", {"ifeval/test.jsonl": [{**IFEVAL, "kwargs": []}]})


def test_humaneval_asks_for_the_function_and_keeps_the_published_tests(tmp_path: Path) -> None:
    row = _row(tmp_path, "humaneval", {"humaneval/test.jsonl": [HUMANEVAL]})
    assert row.prompt[0]["content"].endswith(f"```python\n{HUMANEVAL['prompt'].rstrip()}\n```")
    assert get_verifier(row.verifier).extract(row.answer, "exact") == f"{HUMANEVAL['prompt']}    return a + b\n"
    tests = read_tests(row.ground_truth)
    code = f"{HUMANEVAL['test']}\ncheck(add)\n"
    assert tests.cases == [CodeCase(code=code, prompt=HUMANEVAL["prompt"], names=("add",))]
    assert tests.seconds == 3.0
    assert tests.program("    return 1") == f"{HUMANEVAL['prompt']}    return 1\n"


@pytest.mark.parametrize(("task", "shown"), [("mbpp", 3), ("mbpp_one_test", 1)])
def test_mbpp_shows_all_assertions_or_the_first_and_tests_all(tmp_path: Path, task: str, shown: int) -> None:
    loaded = _load(tmp_path, task, {f"mbpp/{split}.jsonl": [MBPP] for split in ("train", "test", "validation")})
    assert loaded.expected == {"train": 374, "validation": 90, "test": 500}
    (row,) = loaded.splits["test"]
    assert sum(test in row.prompt[0]["content"] for test in MBPP["test_list"]) == shown
    assert read_tests(row.ground_truth).cases == [CodeCase(code=f"import math\n{test}\n") for test in MBPP["test_list"]]


def test_prime_code_takes_the_rows_that_are_code(tmp_path: Path) -> None:
    truth = json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})
    rows = [
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": f"Problem {n}."}], "ability": ability,
         "reward_model": {"ground_truth": truth, "style": "rule"}, "data_source": "taco"}
        for n, ability in enumerate(("math", "code", "math", "code"))
    ]  # fmt: skip
    loaded = _load(tmp_path, "prime_code", {"prime_code/train.parquet": rows, "prime_code/test.parquet": rows[1:2]})
    assert [(row.index, row.question) for row in loaded.splits["train"]] == [(0, "Problem 1."), (1, "Problem 3.")]
    assert loaded.read == {"train": 2, "test": 1}


def test_the_forms_of_prime_code_are_scripts_and_functions() -> None:
    script = read_tests(json.dumps({"inputs": ["1\n", ["2", "3"]], "outputs": ["2\n", "4"]}))
    assert script.cases == [InputCase(input="1\n", output="2\n"), InputCase(input="2\n3", output="4")]
    listed = read_tests(json.dumps({"inputs": [[[1, 2], "a"]], "outputs": [[3]], "fn_name": "f"}))
    assert listed.cases == [CallCase(function="f", arguments=[[1, 2], "a"], expected=[3])]
    lines = read_tests(json.dumps({"inputs": ['[1, 2]\n"a"'], "outputs": ["3"], "fn_name": "f"}))
    assert lines.cases == [CallCase(function="f", arguments=[[1, 2], "a"], expected=3)]


@pytest.mark.parametrize(
    "truth",
    ["", "18", "[]", "{}", '{"test_list": []}', '{"inputs": ["1"], "outputs": []}', '{"inputs": [1], "outputs": ["1"]}',
     '{"inputs": ["x"], "outputs": ["1"], "fn_name": "f"}', '{"inputs": [1], "outputs": [1], "fn_name": "f"}',
     '{"test_list": ["assert 1"], "seconds": 0}', '{"test_list": ["assert 1"], "memory_mb": "x"}',
     '{"test_list": ["assert 1"], "language": "bash"}', '{"test_list": ["assert 1"], "language": "c"}', "[" * 100_000],
)  # fmt: skip
def test_a_ground_truth_without_tests_is_refused(truth: str) -> None:
    with pytest.raises(UserError, match="tests"):
        get_verifier("unit_tests").check(truth)
