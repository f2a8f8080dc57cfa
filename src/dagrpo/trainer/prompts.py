"""The train split as prompts and as supervised targets."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from dagrpo.errors import UserError
from dagrpo.files import read_parquet
from dagrpo.params.training import Training
from dagrpo.records import Example
from dagrpo.rendering import render
from dagrpo.tasks.schema import from_table, require_single_turn
from dagrpo.trainer.rollouts import Prompt


def read_examples(path: Path) -> list[Example]:
    """The rows of a split; UserError when there is none to train on, or one that takes more than a single turn."""
    examples = from_table(read_parquet(path), path)
    require_single_turn(examples, path)
    if not examples:
        raise UserError(f"{path} has no rows: choose an experiment.train task that has a train split.")
    return examples


def prompts_of(
    examples: list[Example], tokenizer: PreTrainedTokenizerBase, training: Training, path: Path
) -> list[Prompt]:
    """The rows within the range of pass rates, rendered; UserError names a row that is too long or has no pass rate."""
    prompts = []
    for index, example in enumerate(examples):
        if not _in_range(example, training):
            continue
        if training.order == "easy_first" and example.pass_rate is None:
            raise UserError(
                f"{path} row {index}: training.order is easy_first, but the problem has no pass rate: set "
                "difficulty.samples, give data.pass_rates, or set training.order to shuffled."
            )
        text, token_ids = render(tokenizer, example.prompt)
        if len(token_ids) > training.max_prompt_tokens:
            raise UserError(
                f"{path} row {index}: the prompt has {len(token_ids)} tokens, training.max_prompt_tokens is "
                f"{training.max_prompt_tokens}: raise it, or set data.max_prompt_tokens to leave such rows out."
            )
        prompts.append(
            Prompt(
                index=index,
                text=text,
                token_ids=token_ids,
                ground_truth=example.ground_truth,
                verifier=example.verifier,
                pass_rate=example.pass_rate,
            )
        )
    return prompts


def _in_range(example: Example, training: Training) -> bool:
    return example.pass_rate is None or training.min_pass_rate <= example.pass_rate <= training.max_pass_rate


def supervised_pairs(
    examples: list[Example], tokenizer: PreTrainedTokenizerBase, path: Path
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every row as prompt and target tokens; UserError names a row whose source has no solution to learn from."""
    for index, example in enumerate(examples):
        if not example.answer.strip():
            raise UserError(
                f"{path} row {index}: {example.data_source} has no solutions to fine-tune on: set sft.steps to 0."
            )
    return [supervised_pair(example, tokenizer) for example in examples]


def supervised_pair(example: Example, tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt tokens and target tokens (the source's answer, then the end of the turn)."""
    _, prompt = render(tokenizer, example.prompt)
    answer = tokenizer(example.answer, add_special_tokens=False)["input_ids"]
    assert tokenizer.eos_token_id is not None, "checked with the model's manifest"
    return prompt, (*answer, tokenizer.eos_token_id)
