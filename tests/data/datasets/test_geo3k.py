"""Geometry3K rows: one figure for each placeholder, the three splits, and what a part of the data set is good for."""

import io
from pathlib import Path

import pytest
from PIL import Image

from dagrpo.data.config import Data
from dagrpo.data.datasets.geo3k import INSTRUCTION, WITH_TOOL
from dagrpo.data.task import get_task

LINES = '{{"problem": "{}", "answer": "15", "image": "train/0.png"}}\n'


def _mirror(folder: Path, problem: str) -> Data:
    """A mirror with one problem in each split, all about the same white square."""
    (folder / "geo3k/train").mkdir(parents=True)
    Image.new("RGB", (4, 4), "white").save(folder / "geo3k/train/0.png")
    for name in ("train", "test"):
        (folder / f"geo3k/{name}.jsonl").write_text(LINES.format(problem))
    return Data(mirror=str(folder), max_train=1, max_test=1)


def test_the_sample_has_its_figures_as_opaque_rgb_files(data_folder: Path) -> None:
    problems = get_task("geo3k").load(Data(mirror=str(data_folder), max_train=200, max_test=70))
    assert {split: len(rows) for split, rows in problems.splits.items()} == {"train": 200, "validation": 30, "test": 70}
    assert problems.expected == {"train": 2101, "validation": 300, "test": 601}
    for row in (*problems.splits["validation"], *problems.splits["test"]):
        (image,) = row.images
        with Image.open(io.BytesIO(image)) as picture:
            assert (picture.format, picture.mode) == ("PNG", "RGB")
        assert row.prompt[0]["content"].count("<image>") == 1


def test_the_prompt_asks_for_thoughts_and_a_box(tmp_path: Path) -> None:
    params = _mirror(tmp_path, "<image>Find y")
    plain, tool = (get_task(name).load(params).splits["train"][0] for name in ("geo3k", "geo3k_tool"))
    user = {"role": "user", "content": f"<image>Find y {INSTRUCTION}"}
    assert plain.prompt == (user,)
    assert tool.prompt == ({"role": "system", "content": WITH_TOOL}, user)
    assert all(part in INSTRUCTION for part in ("<think>", "</think>", "\\boxed{}"))
    assert (plain.ground_truth, plain.answer, plain.verifier) == ("15", "\\boxed{15}", "geo3k")
    assert (plain.tools, tool.tools) == ((), ("answer_check",))


@pytest.mark.parametrize(("problem", "times"), [("Find y", 0), ("<image><image>Find y", 2)])
def test_a_prompt_with_more_or_fewer_placeholders_than_figures_is_refused(
    tmp_path: Path, problem: str, times: int
) -> None:
    params = _mirror(tmp_path, problem)
    with pytest.raises(
        ValueError,
        match=rf"train\.jsonl, row 1, field `image` does not fit the prompt \(pictures: 1, `<image>` in the prompt: {times}\): ",
    ):
        get_task("geo3k").load(params)


def test_the_figures_beside_each_file_have_a_digest_with_it(tmp_path: Path) -> None:
    params = _mirror(tmp_path, "<image>Find y")
    before = get_task("geo3k").load(params).files
    files = {f"geo3k/{split}.jsonl" for split in ("train", "test")}
    assert set(before) == files | {f"{file}#image" for file in files}
    Image.new("RGB", (4, 4), "black").save(tmp_path / "geo3k/train/0.png")
    after = get_task("geo3k").load(params).files
    assert {name for name in before if before[name] != after[name]} == {f"{file}#image" for file in files}


def test_a_sample_without_a_limit_is_refused_and_told_what_to_set(data_folder: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"holds 200 rows, but the train split of hiyouga/geometry3k has 2,101: .* set data\.max_train \(to 200",
    ):
        get_task("geo3k").load(Data(mirror=str(data_folder)))
