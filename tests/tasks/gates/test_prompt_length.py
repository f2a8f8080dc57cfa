"""Prompt lengths in tokens: written to every problem, the long ones dropped, the rest described."""

from pathlib import Path

from tests.tasks.gates.problems import character_model, example, examples, gone, left, qwen3_model, sieve

from dagrpo.tasks.gates.prompt_length import Lengths, count_prompt_tokens, drop_long_prompts, prompt_tokens
from dagrpo.tasks.gates.sieve import Sieve


def test_every_problem_gets_the_tokens_of_its_prompt(tmp_path: Path) -> None:
    found = sieve(["a", "abc"], ["abcdefg"])
    count_prompt_tokens(found, character_model(tmp_path / "tiny"))
    assert [problem.prompt_tokens for problem in found.kept["train"]] == [4, 6]  # <|user|> <|end|> <|assistant|>
    assert [problem.prompt_tokens for problem in found.kept["test"]] == [10]


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
    described = prompt_tokens(found.kept, tools_shown=None)
    assert described.splits == {"train": Lengths(min=4, median=13, percent_95=22, max=23), "test": None}
    assert not described.images_counted


def test_one_problem_is_its_own_median() -> None:
    (only,) = examples(["a"])
    assert prompt_tokens({"train": [only]}, tools_shown=None).splits["train"] == Lengths(
        min=0, median=0, percent_95=0, max=0
    )


def test_a_chat_template_that_leaves_the_tools_out_is_noticed(data_folder: Path, tmp_path: Path) -> None:
    tiny, qwen3 = character_model(tmp_path / "tiny"), qwen3_model(data_folder, tmp_path / "qwen3")
    with_tools = [example("Use the calculator.", tools=("calculator",))]
    assert count_prompt_tokens(Sieve({"train": with_tools}), tiny) is False
    assert count_prompt_tokens(Sieve({"train": with_tools}), qwen3) is True
    assert count_prompt_tokens(sieve(["a"]), tiny) is None
