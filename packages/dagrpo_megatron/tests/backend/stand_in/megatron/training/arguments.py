"""Command line of Megatron-LM: every option of its parser, from options.tsv, and some of what its validation demands."""

import os
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

OPTIONS = Path(__file__).with_name("options.tsv")  # names, action, type, number of values, choices
TYPES: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float}


def parser_of_megatron_lm() -> ArgumentParser:
    parser = ArgumentParser(allow_abbrev=False)
    for line in OPTIONS.read_text().splitlines():
        names, action, kind, count, choices = line.split("\t")
        if action == "BooleanOptionalAction":
            parser.add_argument(*names.split(), action=BooleanOptionalAction)
        elif action in ("store_true", "store_false"):
            parser.add_argument(*names.split(), action=action)
        else:
            values = {
                "nargs": int(count) if count.isdigit() else count or None,
                "choices": [*map(TYPES.get(kind, str), choices.split())] or None,
            }
            parser.add_argument(*names.split(), type=TYPES.get(kind, str), **values)  # type: ignore[arg-type]
    return parser


def parse_args(extra_args_provider: Callable[[ArgumentParser], ArgumentParser]) -> Namespace:
    arguments = extra_args_provider(parser_of_megatron_lm()).parse_args()
    arguments.world_size = int(os.environ["WORLD_SIZE"])
    arguments.rank = int(os.environ["RANK"])
    return arguments


def validate_args(arguments: Namespace, defaults: Mapping[str, Any]) -> None:
    arguments.data_parallel_size = arguments.world_size // arguments.tensor_model_parallel_size
    sampled = arguments.grpo_prompts_per_step * arguments.grpo_group_size
    assert arguments.global_batch_size % (arguments.micro_batch_size * arguments.data_parallel_size) == 0, (
        "global batch size is not divisible by micro batch size times data parallel size"
    )
    assert sampled % arguments.global_batch_size == 0, (
        "grpo_group_size * grpo_prompts_per_step * grpo_iterations should be divisible by global_batch_size"
    )
    assert arguments.max_position_embeddings >= arguments.seq_length
    assert arguments.perform_rl_step
