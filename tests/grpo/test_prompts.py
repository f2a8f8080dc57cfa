"""The train split as prompts: a row that cannot be used is named before the engine starts."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from dagrpo.files import write_parquet
from dagrpo.grpo.prompts import prompts_of, read_examples, supervised_pair
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.records import Example
from dagrpo.tasks.schema import to_table


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return character_tokenizer(256)


def _example(question: str = "1+2=?", **changes: Any) -> Example:
    values: dict[str, Any] = {
        "task": "arithmetic",
        "split": "train",
        "index": 0,
        "prompt": ({"role": "user", "content": question},),
        "question": question,
        "answer": "1+2\n#### 3",
        "ground_truth": "3",
        "data_source": "test",
    }
    return Example(**(values | changes))


def test_a_prompt_ends_where_the_policy_is_to_begin(tokenizer: PreTrainedTokenizerBase) -> None:
    (prompt,) = prompts_of([_example()], tokenizer, 64, Path("train.parquet"))
    assert prompt.text == tokenizer.decode(list(prompt.token_ids))
    assert prompt.text.endswith("<|assistant|>")
    assert prompt.ground_truth == "3"


def test_a_prompt_that_is_too_long_is_named_by_file_and_row(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [_example(), _example("9+" * 40 + "9=?")]
    with pytest.raises(ValueError, match=r"train.parquet row 1: the prompt has \d+ tokens, .* is 64: raise it"):
        prompts_of(rows, tokenizer, 64, Path("train.parquet"))


def test_a_task_without_a_train_split_is_refused_with_the_remedy(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", to_table([]))
    with pytest.raises(ValueError, match=r"has no rows: choose an experiment.train task"):
        read_examples(tmp_path / "train.parquet")


def test_a_supervised_target_is_the_answer_and_the_end_of_the_turn(tokenizer: PreTrainedTokenizerBase) -> None:
    _, target = supervised_pair(_example(), tokenizer)
    assert tokenizer.decode(list(target)) == "1+2\n#### 3<|end|>"
