"""Prompt lengths in tokens: written to every problem, the long ones dropped, the rest described."""

from pathlib import Path

import pytest
from tests.data.filters.problems import character_model, gone, left, qwen3_model, sieve, task_row, task_rows
from tests.pictures import picture

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.data.filters.prompt_length import Lengths, count_prompt_tokens, drop_long_prompts, prompt_tokens
from dagrpo.data.filters.sieve import Sieve
from dagrpo.models.config import Fresh, Model, Vision
from dagrpo.models.make import make_model
from dagrpo.models.pictures import PictureProcessor
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.prompts import PromptRenderer


def test_every_problem_gets_the_tokens_of_its_prompt(tmp_path: Path) -> None:
    found = sieve(["a", "abc"], ["abcdefg"])
    count_prompt_tokens(found, character_model(tmp_path / "tiny"))
    assert [problem.prompt_tokens for problem in found.splits["train"]] == [4, 6]  # <|user|> <|end|> <|assistant|>
    assert [problem.prompt_tokens for problem in found.splits["test"]] == [10]


def test_a_prompt_may_be_as_long_as_the_limit_and_no_longer(tmp_path: Path) -> None:
    found = sieve(["a", "abc", "abcd"], ["abcdefg"])
    count_prompt_tokens(found, character_model(tmp_path / "tiny"))
    drop_long_prompts(found, 6)
    assert (left(found), left(found, "test")) == ([0, 1], [])
    assert gone(found) == [("train", 2, "prompt too long", "7 tokens"), ("test", 0, "prompt too long", "10 tokens")]


def test_without_a_limit_none_is_too_long(tmp_path: Path) -> None:
    found = sieve(["a" * 900])
    count_prompt_tokens(found, character_model(tmp_path / "tiny"))
    drop_long_prompts(found, None)
    assert left(found) == [0]
    assert found.counts == {"train: prompt too long": 0, "test: prompt too long": 0}


def test_lengths_are_nearest_rank_percentiles(tmp_path: Path) -> None:
    found = sieve(["x" * number for number in range(1, 21)])
    count_prompt_tokens(found, character_model(tmp_path / "tiny"))
    described = prompt_tokens(found.splits, tools_shown=None, images_counted=False)
    assert described.splits == {"train": Lengths(min=4, median=13, percent_95=22, max=23), "test": None}
    assert not described.images_counted


def test_one_problem_is_its_own_median() -> None:
    (only,) = task_rows(["a"])
    assert prompt_tokens({"train": [only]}, tools_shown=None, images_counted=False).splits["train"] == Lengths(
        min=0, median=0, percent_95=0, max=0
    )


def test_a_chat_template_that_leaves_the_tools_out_is_noticed(data_folder: Path, tmp_path: Path) -> None:
    tiny, qwen3 = character_model(tmp_path / "tiny"), qwen3_model(data_folder, tmp_path / "qwen3")
    with_tools = [task_row("Use the calculator.", tools=("calculator",))]
    assert count_prompt_tokens(Sieve({"train": with_tools}), tiny) is False
    assert count_prompt_tokens(Sieve({"train": with_tools}), qwen3) is True
    assert count_prompt_tokens(sieve(["a"]), tiny) is None


def _pictured(content: str, *images: bytes) -> Sieve:
    return Sieve({"train": [task_row(content, images=images)], "test": []})


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh model whose tokens are 28 x 28 pixels, four of them the smallest picture."""
    folder = tmp_path_factory.mktemp("vision") / "model"
    make_model(folder, Model(fresh=Fresh(num_hidden_layers=1, vision=Vision(family="qwen2_5_vl", depth=1))))
    return folder


def test_a_picture_counts_as_the_tokens_that_it_takes(vision: Path) -> None:
    found = _pictured("<image>ab<image>", picture(28 * 3, 28 * 2), picture(28 * 5, 28))
    count_prompt_tokens(found, vision)
    (only,) = found.splits["train"]
    assert only.prompt_tokens == len(["<|user|>", "a", "b", "<|end|>", "<|assistant|>"]) + (2 + 6) + (2 + 5)
    prompts = PromptRenderer(load_tokenizer(vision), Conversation(), PictureProcessor.of(vision))
    assert len(prompts.prompt(0, only).token_ids) == only.prompt_tokens, "what the trainer and the engine see"


def test_for_a_model_of_text_a_picture_is_the_text_of_its_place(tmp_path: Path) -> None:
    found = _pictured("<image>", picture())
    count_prompt_tokens(found, character_model(tmp_path / "tiny"))
    assert found.splits["train"][0].prompt_tokens == len("<image>") + 3


def test_a_problem_whose_pictures_are_not_as_many_as_its_places_is_named(vision: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"task sums, train row 0: its pictures do not fit its prompt \(pictures: 2, `<image>` in the prompt: 1\): correct",
    ):
        count_prompt_tokens(_pictured("<image>", picture(), picture()), vision)


def test_a_problem_whose_picture_is_none_is_named(vision: Path) -> None:
    with pytest.raises(UserError, match="task sums, train row 0: it has a picture that is no PNG or JPEG file"):
        count_prompt_tokens(_pictured("<image>", b"no picture"), vision)
