"""The train split's problems that a run trains on."""

from collections.abc import Iterable
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.core.types import Example
from dagrpo.rollout.prompts import PromptLimit, Prompts, problems_of, read_split
from dagrpo.rollout.trajectory import Problem
from dagrpo.trainer.config import Training


def training_problems(path: Path, prompts: Prompts, training: Training) -> list[Problem]:
    """Return the train split's prompts within the range of pass rates.

    Raises UserError if a row is too long or lacks the pass rate that the order needs, or if too few are left.
    """
    examples = read_split(path)
    chosen = [(index, example) for index, example in enumerate(examples) if _in_range(example, training)]
    if training.order == "easy_first":
        _require_pass_rates(chosen, path)
    limit = PromptLimit(
        tokens=training.max_prompt_tokens,
        reason=f"training.max_prompt_tokens is {training.max_prompt_tokens}: raise it, "
        "or set data.max_prompt_tokens to leave such rows out",
    )
    problems = problems_of(chosen, prompts, limit, path)
    if len(problems) < training.prompts_per_step:
        raise UserError(
            f"{path} has {len(problems)} problems to train on ({len(examples)} rows, less those outside "
            f"training.min_pass_rate to max_pass_rate), fewer than training.prompts_per_step "
            f"({training.prompts_per_step}): lower the latter, or widen the range."
        )
    return problems


def _in_range(example: Example, training: Training) -> bool:
    return example.pass_rate is None or training.min_pass_rate <= example.pass_rate <= training.max_pass_rate


def _require_pass_rates(rows: Iterable[tuple[int, Example]], source: Path) -> None:
    for index, example in rows:
        if example.pass_rate is None:
            raise UserError(
                f"{source} row {index}: training.order is easy_first, but the problem has no pass rate: set "
                "difficulty.samples, give data.pass_rates, or set training.order to shuffled."
            )
