"""A run whose problems offer tools and have simulated users, and what verl must get of its attempts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.trainer import foreign_runs, runs

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse
from dagrpo.core.types import Row
from dagrpo.data.schema import to_table
from dagrpo.models.fresh import make_fresh
from dagrpo.tools.simulated_users.gsm8k_feedback import WRONG
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.tables import write_parquet

ADD = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "20+22"}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2+"}}\n</tool_call>'
PRINT = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(6*7)"}}\n</tool_call>'
TOOLS = ("calculator", "code_interpreter")
SCRIPTS = {
    0: [ADD, "#### 1"],
    1: ["#### 9", "#### 2"],
    2: [PRINT, "#### 0"],
    3: ["x" * 500],
    4: [BROKEN],
}


def run_in(folder: Path) -> TrainingRun:
    """Return a run of five problems: tools, a user, tools, neither, tools."""
    shape = runs.SHAPE.model_copy(update={"tools": list(TOOLS), "max_position_embeddings": 1024})
    make_fresh(folder / "model", shape, torch.float32)
    convert(folder / "model", folder / "initial", Checkpoint())
    write_parquet(folder / "train.parquet", to_table([_row(number) for number in SCRIPTS]))
    agent = {"name": "tool_agent", "max_turns": 3, "max_tokens": 900}
    changes = {
        "rollout": {"max_new_tokens": 120, "agent": agent},
        "reward": {"components": {"accuracy": {}, "successful_call": {"weight": 0.25}}},
        "training": {"backend": {"name": "verl"}},
        "experiment": {"train": "gsm8k_tool", "evaluate": ["gsm8k"], "tasks": ["gsm8k", "gsm8k_tool"]},
    }
    params = parse(merged(foreign_runs.CHANGES, changes))
    run = runs.training_run((folder / "initial", folder / "train.parquet"), folder / "state", folder / "out", 4)
    return replace(run, **foreign_runs.sections_of(params))


def _row(number: int) -> Row:
    row = runs.task_row(number)
    return replace(row, tools=() if number in (1, 3) else TOOLS, interaction="gsm8k_feedback" if number == 1 else "")


def require_ours(found: Mapping[int, Any], run: TrainingRun) -> None:
    """Check the sequences, masks and rewards that verl gets, which are those of our own loop."""
    tokenizer = load_tokenizer(run.initial)

    def given(number: int) -> str:
        """Return what the policy did not write."""
        [sequence] = found[number]["sequences"]
        tokens = zip(sequence["response_ids"], sequence["response_mask"], strict=True)
        return str(tokenizer.decode([token for token, is_own in tokens if not is_own]))

    rewards = {number: each["sequences"][0]["reward_score"] for number, each in found.items()}
    assert rewards == {0: 1.25, 1: 1.0, 2: 0.25, 3: 0.0, 4: 0.0}
    assert "<|tool|>42<|end|>" in given(0)
    assert f"<|user|>{WRONG}<|end|>" in given(1)
    assert "<|tool|>42" in given(2)
    assert given(3) == ""
    assert "cannot read this expression" in given(4)
    assert {number: len(each["asked"]) for number, each in found.items()} == {0: 2, 1: 2, 2: 2, 3: 1, 4: 3}
    first, second = found[0]["asked"]
    [sequence] = found[0]["sequences"]
    whole = sequence["prompt_ids"] + sequence["response_ids"]
    assert first["prompt"] == sequence["prompt_ids"]
    assert whole[: len(second["prompt"])] == second["prompt"]
    assert sum(sequence["response_mask"]) == len(whole) - len(first["prompt"]) - len(tokenizer(given(0))["input_ids"])
    own = [own for own, is_own in zip(sequence["response_logprobs"], sequence["response_mask"], strict=True) if is_own]
    assert set(own) == {-0.5}
    assert sequence["num_turns"] == 4
    assert sequence["info"] == {"acc": 1.0, "accuracy": 1.0, "successful_call": 1.0}
    assert found[3]["asked"][0]["sampling"]["max_new_tokens"] == 120
    assert len(found[3]["sequences"][0]["response_ids"]) == 120
