"""The train split as prompts and as supervised targets."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from dagrpo.files import read_parquet
from dagrpo.grpo.rollouts import Prompt
from dagrpo.records import Example
from dagrpo.rendering import render
from dagrpo.tasks.schema import from_table


def read_examples(path: Path) -> list[Example]:
    """The rows of a split; ValueError when there is none to train on."""
    examples = from_table(read_parquet(path), path)
    if not examples:
        raise ValueError(f"{path} has no rows: choose an experiment.train task that has a train split.")
    return examples


def prompts_of(
    examples: list[Example], tokenizer: PreTrainedTokenizerBase, max_prompt_tokens: int, path: Path
) -> list[Prompt]:
    """Every row rendered; ValueError names a row that is too long."""
    prompts = []
    for index, example in enumerate(examples):
        text, token_ids = render(tokenizer, example.prompt)
        if len(token_ids) > max_prompt_tokens:
            raise ValueError(
                f"{path} row {index}: the prompt has {len(token_ids)} tokens, training.max_prompt_tokens is "
                f"{max_prompt_tokens}: raise it, or leave the row out."
            )
        prompts.append(Prompt(index=index, text=text, token_ids=token_ids, ground_truth=example.ground_truth))
    return prompts


def supervised_pair(example: Example, tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt tokens and target tokens (the source's answer, then the end of the turn)."""
    _, prompt = render(tokenizer, example.prompt)
    answer = tokenizer(example.answer, add_special_tokens=False)["input_ids"]
    assert tokenizer.eos_token_id is not None, "checked with the model's manifest"
    return prompt, (*answer, tokenizer.eos_token_id)
