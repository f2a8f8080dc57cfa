"""Data sets that are at hand: their rows are complete, each ground truth is exact, and a fault names file, row and field."""

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from PIL import Image
from tests.data.preparing import mirror_of

from dagrpo.data.config import Data
from dagrpo.data.datasets import aime, dapo, geo3k, gsm8k
from dagrpo.data.datasets.dapo import CLOSING, OPENING
from dagrpo.data.raw_row import RawRow
from dagrpo.data.task import TaskRows, get_task
from dagrpo_answers.verifiers.gsm8k import equal, extract

GSM8K = ("gsm8k", "gsm8k_tool", "gsm8k_feedback", "gsm8k_sft")


@pytest.fixture(scope="module")
def whole(data_folder: Path) -> Callable[[str], TaskRows]:
    """Load a task from the copies at hand, once."""
    return cache(lambda name: get_task(name).load(Data(mirror=str(data_folder))))


@pytest.mark.parametrize(
    ("answer", "truth"), [("025", "25"), ("0", "0"), ("000", "0"), ("999", "999"), (" 33\n", "33")]
)
def test_a_ground_truth_of_aime_is_an_integer_without_padding(answer: str, truth: str) -> None:
    problem = aime.to_row(RawRow(file="f", number=8, fields={"problem": "Find $x$.", "answer": answer}))
    assert (problem.ground_truth, problem.answer) == (truth, f"\\boxed{{{truth}}}")


@pytest.mark.parametrize(
    ("name", "first", "padded"),
    [("aime_2024", "204", "25"), ("aime_2025", "70", "149"), ("aime_2024_tool", "204", "25")],
)
def test_aime_has_thirty_problems_and_nothing_to_train_on(
    whole: Callable[[str], TaskRows], name: str, first: str, padded: str
) -> None:
    problems = whole(name)
    assert {split: len(rows) for split, rows in problems.splits.items()} == {"train": 0, "test": 30}
    assert problems.expected == problems.read == {"train": 0, "test": 30}
    truths = [row.ground_truth for row in problems.splits["test"]]
    assert truths[0] == first
    assert padded in truths
    assert all(0 <= int(truth) <= 999 and truth == str(int(truth)) for truth in truths)
    assert not problems.held_out


def test_dapos_prompt_is_its_own_and_the_question_the_problem_alone() -> None:
    fields = {"prompt": f"{OPENING}Find $x$.\n\nHint: none.{CLOSING}", "ground_truth": "34", "id": "1"}
    problem = dapo.to_row(RawRow(file="f", number=5, fields=fields))
    assert problem.prompt == ({"role": "user", "content": f"{OPENING}Find $x$.\n\nHint: none.{CLOSING}"},)
    assert problem.question == "Find $x$.\n\nHint: none."
    assert (problem.ground_truth, problem.answer) == ("34", "Answer: 34")


@pytest.mark.parametrize(
    ("to_row", "row", "fault"),
    [
        *(
            (aime.to_row, {"problem": "Find $x$.", "answer": answer}, "`answer` is '.*', not an integer from 0 to 999")
            for answer in ("1000", "-1", "12.5", "x", "\uff11\uff12")
        ),
        *(
            (dapo.to_row, {"prompt": prompt, "ground_truth": "34", "id": "1"}, f"`prompt` {fault}")
            for prompt, fault in (
                ("Find $x$.", "does not ask for the answer in the data set's own words"),
                (f"{OPENING}Find $x$.", "does not ask for the answer"),
                (f"{OPENING} {CLOSING}", "holds no problem"),
            )
        ),
        *(
            (gsm8k.to_row, {"question": "How many?", "answer": answer}, "`answer` has no `####` followed by a number")
            for answer in ("The answer is 18", "#### eighteen", "####")
        ),
    ],
)
def test_a_row_without_a_ground_truth_is_refused_by_its_field(
    to_row: Callable[[RawRow], object], row: dict[str, str], fault: str
) -> None:
    with pytest.raises(ValueError, match=rf"f\.jsonl, row 17, field {fault}"):
        to_row(RawRow(file="f.jsonl", number=17, fields=row))


def test_dapos_real_rows_are_complete_and_exact(whole: Callable[[str], TaskRows]) -> None:
    problems = whole("dapo")
    train = problems.splits["train"]
    assert len(train) == problems.read["train"] == problems.expected["train"] == 17_917
    assert len({row.question for row in train}) == 17_290
    assert sum(row.ground_truth.startswith("-") for row in train) == 366
    assert max((row.ground_truth for row in train), key=int) == "22099999999999998951424"
    assert (problems.held_out, len(problems.splits["test"])) == (True, 0)
    assert {(row.verifier, row.tools) for row in train} == {("math_dapo", ())}


@pytest.mark.parametrize("name", GSM8K)
def test_every_form_of_gsm8k_has_all_rows_and_worked_answers_that_verify(
    whole: Callable[[str], TaskRows], name: str
) -> None:
    problems = whole(name)
    assert {split: len(rows) for split, rows in problems.splits.items()} == {"train": 7473, "test": 1319}
    assert problems.read == problems.expected == {"train": 7473, "test": 1319}
    assert [row.index for row in problems.splits["test"]] == list(range(1319))
    for row in (*problems.splits["train"], *problems.splits["test"]):
        assert equal(extract(row.answer, "strict") or "", row.ground_truth)
        assert (row.task, row.verifier, row.data_source) == (name, "gsm8k", "openai/gsm8k")


def test_the_forms_of_gsm8k_differ_in_prompt_tools_and_interaction_only(whole: Callable[[str], TaskRows]) -> None:
    first = {name: whole(name).splits["test"][0] for name in GSM8K}
    question = first["gsm8k"].question
    plain = {"role": "user", "content": f"{question} {gsm8k.INSTRUCTION}"}
    assert {name: (row.prompt, row.tools, row.interaction) for name, row in first.items()} == {
        "gsm8k": ((plain,), (), ""),
        "gsm8k_tool": (({"role": "system", "content": gsm8k.WITH_TOOL}, plain), ("answer_check",), ""),
        "gsm8k_feedback": (({"role": "system", "content": gsm8k.WITH_FEEDBACK}, plain), (), "gsm8k_feedback"),
        "gsm8k_sft": (({"role": "user", "content": question},), (), ""),
    }
    assert {(row.question, row.answer, row.ground_truth) for row in first.values()} == {
        (question, first["gsm8k"].answer, "18")
    }


def _geo3k_mirror(folder: Path, problem: str) -> Data:
    """A mirror with one problem in train and test, both about the same white square."""
    (folder / "geo3k/train").mkdir(parents=True)
    Image.new("RGB", (4, 4), "white").save(folder / "geo3k/train/0.png")
    row = {"problem": problem, "answer": "15", "image": "train/0.png"}
    return mirror_of(folder, {f"geo3k/{name}.jsonl": [row] for name in ("train", "test")})


def test_the_sample_of_geo3k_has_its_figures_as_opaque_rgb_files(data_folder: Path) -> None:
    problems = get_task("geo3k").load(Data(mirror=str(data_folder), max_train=200, max_test=70))
    assert {split: len(rows) for split, rows in problems.splits.items()} == {"train": 200, "validation": 30, "test": 70}
    assert problems.expected == {"train": 2101, "validation": 300, "test": 601}
    for row in (*problems.splits["validation"], *problems.splits["test"]):
        (image,) = row.images
        with Image.open(io.BytesIO(image)) as picture:
            assert (picture.format, picture.mode) == ("PNG", "RGB")
        assert row.prompt[0]["content"].count("<image>") == 1


def test_the_prompt_of_geo3k_asks_for_thoughts_and_a_box(tmp_path: Path) -> None:
    params = _geo3k_mirror(tmp_path, "<image>Find y")
    plain, tool = (get_task(name).load(params).splits["train"][0] for name in ("geo3k", "geo3k_tool"))
    user = {"role": "user", "content": f"<image>Find y {geo3k.INSTRUCTION}"}
    assert plain.prompt == (user,)
    assert tool.prompt == ({"role": "system", "content": geo3k.WITH_TOOL}, user)
    assert (plain.ground_truth, plain.answer, plain.verifier) == ("15", "\\boxed{15}", "geo3k")
    assert (plain.tools, tool.tools) == ((), ("answer_check",))


@pytest.mark.parametrize(("problem", "times"), [("Find y", 0), ("<image><image>Find y", 2)])
def test_a_prompt_with_more_or_fewer_placeholders_than_figures_is_refused(
    tmp_path: Path, problem: str, times: int
) -> None:
    fault = (
        rf"train\.jsonl, row 1, field `image` does not fit the prompt \(pictures: 1, `<image>` in the prompt: {times}\)"
    )
    with pytest.raises(ValueError, match=fault):
        get_task("geo3k").load(_geo3k_mirror(tmp_path, problem))


def test_the_figures_beside_each_file_have_a_digest_with_it(tmp_path: Path) -> None:
    params = _geo3k_mirror(tmp_path, "<image>Find y")
    before = get_task("geo3k").load(params).files
    files = {f"geo3k/{split}.jsonl" for split in ("train", "test")}
    assert set(before) == files | {f"{file}#image" for file in files}
    Image.new("RGB", (4, 4), "black").save(tmp_path / "geo3k/train/0.png")
    after = get_task("geo3k").load(params).files
    assert {name for name in before if before[name] != after[name]} == {f"{file}#image" for file in files}
