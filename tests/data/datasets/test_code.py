"""HumanEval, MBPP and prime_code rows, and their tests as the verifier reads them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.task import TaskRows, get_task
from dagrpo.rewards.verifiers import get_verifier
from dagrpo_answers.unit_tests.tests_of_row import CallCase, CodeCase, InputCase, read_tests

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def add(a, b):\n    """Return the sum of two whole numbers that are both given as arguments of this one function."""\n',
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "entry_point": "add",
}
MBPP: dict[str, Any] = {
    "task_id": 11,
    "text": "Write a function to add.",
    "code": "def add(a, b):\r\n    return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert add(0, 0) == 0"],
    "test_setup_code": "import math",
    "challenge_test_list": [],
}


def _load(folder: Path, task: str, files: dict[str, list[dict[str, Any]]]) -> TaskRows:
    for name, rows in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), folder / name)
        else:
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return get_task(task).load(Data(mirror=str(folder), max_train=5, max_test=5))


def _humaneval(folder: Path) -> Row:
    return _load(folder, "humaneval", {"humaneval/test.jsonl": [HUMANEVAL]}).splits["test"][0]


def test_humaneval_asks_for_the_function_and_keeps_the_published_tests(tmp_path: Path) -> None:
    row = _humaneval(tmp_path)
    assert row.prompt[0]["content"].endswith(f"```python\n{HUMANEVAL['prompt'].rstrip()}\n```")
    assert get_verifier(row.verifier).extract(row.answer, "exact") == f"{HUMANEVAL['prompt']}    return a + b\n"
    tests = read_tests(row.ground_truth)
    assert tests.cases == [
        CodeCase(code=f"{HUMANEVAL['test']}\ncheck(add)\n", prompt=HUMANEVAL["prompt"], names=("add",))
    ]
    assert tests.seconds == 3.0
    assert tests.program("    return 1") == f"{HUMANEVAL['prompt']}    return 1\n"
    assert get_task("humaneval").source.rows == {"test": 164}  # type: ignore[union-attr]


@pytest.mark.parametrize(("task", "shown"), [("mbpp", 3), ("mbpp_one_test", 1)])
def test_mbpp_shows_all_assertions_or_the_first_and_tests_all(tmp_path: Path, task: str, shown: int) -> None:
    files = {f"mbpp/{split}.jsonl": [MBPP] for split in ("train", "test", "validation")}
    loaded = _load(tmp_path, task, files)
    assert loaded.expected == {"train": 374, "validation": 90, "test": 500}
    (row,) = loaded.splits["test"]
    assert sum(test in row.prompt[0]["content"] for test in MBPP["test_list"]) == shown
    assert [case.code for case in read_tests(row.ground_truth).cases if isinstance(case, CodeCase)] == [
        f"import math\n{test}\n" for test in MBPP["test_list"]
    ]


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


def test_one_liners_are_distinct_and_their_answers_are_read() -> None:
    from dagrpo_toys.one_liners import value

    loaded = get_task("one_liners").load(Data())
    rows = [*loaded.splits["train"], *loaded.splits["test"]]
    assert len({row.question for row in rows}) == len(rows) == 1700
    assert value((("add", 3), ("times", 2), ("square", 0), ("modulo", 7), ("negate", 0), ("subtract", 1)), 1) == -2
    for row in rows[:50]:
        _pass(row)


def test_a_share_of_demonstrated_one_liners_lacks_the_parentheses_and_no_test_problem_does() -> None:
    document = {"data": {"one_liners": {"train": 200, "test": 50, "right_demonstrations": 0.25}}}
    loaded = get_task("one_liners").load(parse(document).data)
    assert [row for row in loaded.splits["test"] if not _passes(row)] == []
    wrong = [row for row in loaded.splits["train"] if not _passes(row)]
    assert all("(" not in row.answer for row in wrong)
    assert 200 * 0.75 * 0.3 < len(wrong) < 200 * 0.75 * 0.6, (
        "without parentheses four programs in ten compute something else"
    )


def _passes(row: Row) -> bool:
    try:
        _pass(row)
    except AssertionError:
        return False
    return True


def _pass(row: Row) -> None:
    """Raise AssertionError unless the row's demonstration passes its tests."""
    program = get_verifier("unit_tests").extract(row.answer, "strict") or ""
    exec(program + json.loads(row.ground_truth)["test_list"][0], {})
