"""Small pictures that are drawn: what is asked is to be seen, and nothing of test is in train."""

import io
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.images import rgb_file
from dagrpo.data.task import TaskRows
from dagrpo_answers.verifiers.math import VERIFIER
from dagrpo_toys.shapes import COLOURS, DIGITS, DOT, SIDE, Config, load

WHITE = (255, 255, 255)


def _load(**wanted: object) -> TaskRows:
    return load(Data(shapes=Config.model_validate({"train": 120, "test": 60, **wanted})))


@pytest.fixture(scope="module")
def problems() -> TaskRows:
    return _load()


def _every(problems: TaskRows, level: str) -> list[Row]:
    return [each for split in problems.splits.values() for each in split if each.ability == level]


def _pixels(task_row: Row) -> np.ndarray:
    """[SIDE, SIDE, 3]"""
    with Image.open(io.BytesIO(task_row.images[0])) as picture:
        assert (picture.size, picture.mode, picture.format) == ((SIDE, SIDE), "RGB", "PNG")
        return np.asarray(picture)


def _number_of_shapes(inked: np.ndarray) -> int:
    """Connected regions of ink, by flooding one after the other."""
    left, found = inked.copy(), 0
    while left.any():
        flood, found = [tuple(np.argwhere(left)[0])], found + 1
        while flood:
            row, column = flood.pop()
            if 0 <= row < SIDE and 0 <= column < SIDE and left[row, column]:
                left[row, column] = False
                flood += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
    return found


def test_as_many_shapes_are_drawn_as_the_answer_says(problems: TaskRows) -> None:
    for task_row in _every(problems, "count"):
        assert _number_of_shapes((_pixels(task_row) != WHITE).any(axis=2)) == int(task_row.ground_truth)


def test_the_one_shape_has_the_colour_that_the_answer_names(problems: TaskRows) -> None:
    for task_row in _every(problems, "colour"):
        colours = {tuple(map(int, pixel)) for pixel in _pixels(task_row).reshape(-1, 3)}
        assert colours == {WHITE, COLOURS[task_row.ground_truth]}


def test_the_digit_above_the_line_is_the_answer(problems: TaskRows) -> None:
    for task_row in _every(problems, "length"):
        inked = (_pixels(task_row) != WHITE).any(axis=2)
        line = next(row for row in range(SIDE) if inked[row].sum() > SIDE // 2)
        above = inked[:line]
        rows, columns = np.flatnonzero(above.any(axis=1)), np.flatnonzero(above.any(axis=0))
        glyph = above[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1][::DOT, ::DOT]
        drawn = "".join(str(int(dot)) for dot in glyph.flatten())
        without_margin = np.array([int(dot) for dot in DIGITS[int(task_row.ground_truth) - 1]]).reshape(5, 3)
        without_margin = without_margin[:, without_margin.any(axis=0)]
        assert drawn == "".join(map(str, without_margin.flatten()))


def test_levels_take_turns_and_answers_are_spread(problems: TaskRows) -> None:
    train = problems.splits["train"]
    assert Counter(each.ability for each in train) == {"count": 40, "colour": 40, "length": 40}
    assert {each.ground_truth for each in _every(problems, "count")} == set("12345")
    assert {each.ground_truth for each in _every(problems, "colour")} == set(COLOURS)
    assert {each.ground_truth for each in _every(problems, "length")} == set("123456789")


def test_every_picture_has_the_form_and_is_there_once_and_every_answer_is_read(problems: TaskRows) -> None:
    files = [each.images[0] for split in problems.splits.values() for each in split]
    assert len(set(files)) == len(files) == 180
    for task_row in problems.splits["test"]:
        answer = VERIFIER.extract(task_row.answer, "exact")
        assert answer == task_row.ground_truth
        assert VERIFIER.equal(answer, task_row.ground_truth)
        assert rgb_file(task_row.images[0]) == task_row.images[0]


def test_the_same_seed_draws_the_same_and_more_problems_leave_those_that_there_are(problems: TaskRows) -> None:
    assert _load(seed=1).splits["test"] != problems.splits["test"]
    more = _load(train=130)
    assert more.splits["test"] == problems.splits["test"]
    assert more.splits["train"][:120] == problems.splits["train"]


def test_swapped_the_texts_stay_and_every_picture_is_at_another_problem(problems: TaskRows) -> None:
    swapped = _load(swapped=True)
    for split, straight in problems.splits.items():
        pairs = list(zip(straight, swapped.splits[split], strict=True))
        assert all((a.prompt, a.ground_truth) == (b.prompt, b.ground_truth) for a, b in pairs)
        assert all(a.images != b.images for a, b in pairs)
        assert Counter(a.images for a, _ in pairs) == Counter(b.images for _, b in pairs)


def test_a_level_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.shapes\.levels lists count twice: list each level once"):
        Config(levels=["count", "colour", "count"])
