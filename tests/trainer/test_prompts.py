"""The train split as prompts: a row that cannot be used is named before the engine starts."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from dagrpo.files import write_parquet
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.params.training import Training
from dagrpo.records import Example
from dagrpo.tasks.schema import to_table
from dagrpo.trainer.prompts import prompts_of, read_examples, supervised_pair, supervised_pairs


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
    (prompt,) = prompts_of([_example()], tokenizer, Training(), Path("train.parquet"))
    assert prompt.text == tokenizer.decode(list(prompt.token_ids))
    assert prompt.text.endswith("<|assistant|>")
    assert prompt.ground_truth == "3"


def test_a_prompt_that_is_too_long_is_named_by_file_and_row(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [_example(), _example("9+" * 40 + "9=?")]
    with pytest.raises(ValueError, match=r"train.parquet row 1: the prompt has \d+ tokens, .* is 64: raise it"):
        prompts_of(rows, tokenizer, Training(), Path("train.parquet"))


def test_a_task_without_a_train_split_is_refused_with_the_remedy(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", to_table([]))
    with pytest.raises(ValueError, match=r"has no rows: choose an experiment.train task"):
        read_examples(tmp_path / "train.parquet")


def test_only_problems_within_the_range_of_pass_rates_and_unrated_ones_are_trained_on(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rows = [_example(pass_rate=rate) for rate in (0.0, 0.25, None, 0.75, 1.0)]
    training = Training(min_pass_rate=0.25, max_pass_rate=0.75)
    prompts = prompts_of(rows, tokenizer, training, Path("train.parquet"))
    assert [(prompt.index, prompt.pass_rate) for prompt in prompts] == [(1, 0.25), (2, None), (3, 0.75)]


def test_a_curriculum_over_problems_without_a_pass_rate_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [_example(pass_rate=0.5), _example()]
    with pytest.raises(ValueError, match=r"row 1: training.order is easy_first, but .* has no pass rate: set diffic"):
        prompts_of(rows, tokenizer, Training(order="easy_first"), Path("train.parquet"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tools": ("code_interpreter",)}, "offers the tool code_interpreter, which a single-turn rollout never runs"),
        ({"interaction": "gsm8k"}, "the simulated user gsm8k has no turn"),
        ({"images": (b"png",)}, "it has images"),
    ],
)
def test_a_row_that_takes_more_than_a_single_turn_of_text_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_parquet(tmp_path / "train.parquet", to_table([_example(), _example(**changes)]))
    with pytest.raises(ValueError, match=rf"train.parquet, row 1: .*{words}.*: choose a task in a single-turn form"):
        read_examples(tmp_path / "train.parquet")


def test_a_supervised_target_is_the_answer_and_the_end_of_the_turn(tokenizer: PreTrainedTokenizerBase) -> None:
    _, target = supervised_pair(_example(), tokenizer)
    assert tokenizer.decode(list(target)) == "1+2\n#### 3<|end|>"


def test_a_row_without_a_solution_cannot_be_fine_tuned_on(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ValueError, match=r"row 1: test has no solutions to fine-tune on: set sft.steps to 0"):
        supervised_pairs([_example(), _example(answer="")], tokenizer, Path("train.parquet"))
