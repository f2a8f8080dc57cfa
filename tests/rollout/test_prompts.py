"""A split as problems: a row that cannot be used is named before the engine starts, and every seed has its order."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import pictures
from tests.pictures import picture
from tests.rollout.problems import task_row
from tests.rollout.scripted_chat import ScriptedChat

from dagrpo.chat.renderers import Message, ToolSchema
from dagrpo.core.errors import UserError
from dagrpo.core.types import PromptPictures, Row
from dagrpo.data.schema import to_table
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.prompts import PromptRenderer, prompt_indices, read_split, render_row
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling.training_prompts import read_training_prompts
from dagrpo.utils.tables import write_parquet

TOKENIZER = character_tokenizer(256)


@pytest.fixture(scope="module")
def prompts() -> PromptRenderer:
    return PromptRenderer(TOKENIZER, Conversation())


def split(folder: Path, *task_rows: Row) -> Path:
    write_parquet(folder / "train.parquet", to_table(task_rows))
    return folder / "train.parquet"


def training(**values: Any) -> Training:
    return Training.model_validate({"prompts_per_step": 1} | values)


def test_a_prompt_ends_where_the_policy_is_to_begin(prompts: PromptRenderer, tmp_path: Path) -> None:
    (only,) = read_training_prompts([split(tmp_path, task_row())], prompts, training())
    assert only.text == TOKENIZER.decode(list(only.token_ids))
    assert only.text.endswith("<|assistant|>")
    assert only.row.ground_truth == "3"


@pytest.mark.parametrize(
    ("rows", "values", "words"),
    [
        (
            [task_row(), task_row("9+" * 40 + "9=?")],
            {},
            r"train.parquet row 1: the prompt has \d+ tokens, .* is 64: raise it",
        ),
        (
            [task_row(pass_rate=0.5), task_row(pass_rate=1.0)],
            {"prompts_per_step": 2, "max_pass_rate": 0.75},
            r"has 1 problems to train on \(2 rows, .*fewer than training.prompts_per_step \(2\)",
        ),
        (
            [task_row(pass_rate=0.5), task_row()],
            {"order": "easy_first"},
            r"row 1: training.order is easy_first, but .* has no pass rate: set diffic",
        ),
    ],
)
def test_rows_that_cannot_be_trained_on_are_refused(
    prompts: PromptRenderer, tmp_path: Path, rows: list[Row], values: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        read_training_prompts([split(tmp_path, *rows)], prompts, training(**values))


def test_another_number_of_pictures_than_places_or_any_for_a_model_of_text_is_refused_by_name(
    prompts: PromptRenderer, with_pictures: PromptRenderer
) -> None:
    with pytest.raises(
        UserError, match="task arithmetic, train row 0: it has pictures, and the model takes text alone"
    ):
        prompts.prompt(0, _pictured())
    with pytest.raises(
        UserError, match="task arithmetic, train row 0: its prompt has places for 2 pictures, and it has 1"
    ):
        with_pictures.prompt(0, task_row(prompt=FIGURE[1:], images=(picture(),)))


def test_a_split_without_rows_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train.parquet has no rows: choose tasks \(experiment.train"):
        read_split(split(tmp_path))


def test_only_problems_within_the_range_of_pass_rates_and_unrated_ones_are_trained_on(
    prompts: PromptRenderer, tmp_path: Path
) -> None:
    path = split(tmp_path, *(task_row(pass_rate=rate) for rate in (0.0, 0.25, None, 0.75, 1.0)))
    problems = read_training_prompts([path], prompts, training(min_pass_rate=0.25, max_pass_rate=0.75))
    assert [(each.index, each.row.pass_rate) for each in problems] == [(1, 0.25), (2, None), (3, 0.75)]


FIGURE = ({"role": "system", "content": "Look."}, {"role": "user", "content": "<image>Which is in <image>?"})


@pytest.fixture(scope="module")
def with_pictures() -> PromptRenderer:
    return PromptRenderer(pictures.TOKENIZER, Conversation(), pictures.PROCESSOR)


def _pictured(**changes: Any) -> Row:
    return task_row(images=(picture(), picture(60, 40)), **{"prompt": FIGURE[1:]} | changes)


def test_each_picture_stands_where_the_text_says_with_as_many_placeholders_as_it_takes(
    with_pictures: PromptRenderer,
) -> None:
    problem = with_pictures.prompt(3, _pictured())
    first, second = ("<|vision_start|>" + "<|image_pad|>" * tokens + "<|vision_end|>" for tokens in (4, 6))
    shown = pictures.TOKENIZER.decode(list(problem.token_ids))
    assert shown == f"<|user|>{first}Which is in {second}?<|end|><|assistant|>"
    assert problem.pictures == PromptPictures(files=(picture(), picture(60, 40)), tokens=pictures.TOKENS)


def test_a_problem_of_text_names_the_tokens_of_pictures_and_has_none(with_pictures: PromptRenderer) -> None:
    """Also where its text says `<image>`, which is a place for a picture in none but tasks with pictures."""
    problem = with_pictures.prompt(0, task_row("What is <image> in HTML?"))
    assert problem.pictures == PromptPictures(files=(), tokens=pictures.TOKENS)
    assert pictures.TOKENIZER.decode(list(problem.token_ids)) == "<|user|>What is <image> in HTML?<|end|><|assistant|>"


def test_a_text_that_spells_a_placeholder_is_no_picture(with_pictures: PromptRenderer) -> None:
    said = ({"role": "user", "content": "<image><|image_pad|><image>"},)
    problem = with_pictures.prompt(0, _pictured(prompt=said))
    assert problem.token_ids.count(pictures.TOKENS.image) == 4 + 6


@pytest.mark.parametrize(
    ("token", "refused"),
    [
        (pictures.TOKENS.image, "has places for 1 pictures, and it has 0"),
        (pictures.TOKENS.video, "has a placeholder for a video"),
    ],
)
def test_a_chat_format_that_takes_a_text_for_a_place_is_refused_by_name(token: int, refused: str) -> None:
    class Literal(ScriptedChat):
        def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
            return "", (1, token, 2)

    with pytest.raises(UserError, match=f"task arithmetic, train row 0: its prompt {refused}"):
        render_row(Literal(), task_row("Say <|image_pad|>."), (), pictures.PROCESSOR)


def test_a_prompt_that_its_pictures_make_too_long_can_be_made_shorter(
    with_pictures: PromptRenderer, tmp_path: Path
) -> None:
    path = split(tmp_path, _pictured())
    with pytest.raises(
        UserError, match=r"the prompt has 30 tokens, .* or lower model\.max_pixels so that its pictures"
    ):
        read_training_prompts([path], with_pictures, training(max_prompt_tokens=29))


@given(st.integers(0, 9), st.integers(1, 40), st.integers(1, 8))
def test_every_prompt_comes_once_per_epoch(seed: int, total: int, count: int) -> None:
    drawn = [index for step in range(2 * total) for index in prompt_indices(seed, step * count, count, total)]
    for epoch in range(len(drawn) // total):
        assert sorted(drawn[epoch * total : (epoch + 1) * total]) == list(range(total))
    assert prompt_indices(seed, 3, 16, 1000) == prompt_indices(seed, 3, 16, 1000) != prompt_indices(10, 3, 16, 1000)


def test_a_curriculum_goes_from_easy_to_hard_in_every_epoch_and_shuffles_equals() -> None:
    rates = [0.25, 1.0, 0.5, 1.0, 0.0, 0.5]
    epochs = [prompt_indices(7, 6 * step, 6, 6, rates) for step in range(20)]
    assert all([rates[index] for index in epoch] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.0] for epoch in epochs)
    assert {tuple(epoch[:2]) for epoch in epochs} == {(1, 3), (3, 1)}
    assert epochs == [prompt_indices(7, 6 * step, 6, 6, rates) for step in range(20)]
    rising = [float(index) for index in range(10)]
    assert [prompt_indices(0, 4 * step, 4, 10, rising) for step in range(3)] == [
        [9, 8, 7, 6],
        [5, 4, 3, 2],
        [1, 0, 9, 8],
    ]
