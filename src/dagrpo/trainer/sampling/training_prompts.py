"""Prompts of a run: rows of its tasks' train splits."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import Row
from dagrpo.rollout.mixture import Mixture
from dagrpo.rollout.prompts import PromptLimit, PromptRenderer, prompts_of, read_split
from dagrpo.trainer.config.training import Training


def read_training_prompts(
    splits: Sequence[Path], renderer: PromptRenderer, training: Training, shares: Mapping[str, float] | None = None
) -> list[Prompt]:
    """Return the prompts of the train splits, one for each task. Their index is the row among those of all splits in this order.

    `shares`: of the tasks, {} or None for their sizes. Raises UserError if a row is too long or lacks the pass rate that the order
    needs, or if a task has too few for its part of a batch.
    """
    first, prompts = 0, dict[Path, list[Prompt]]()
    rows = {path: read_split(path) for path in splits}
    for path, own in rows.items():
        found = _prompts(path, own, renderer, training)
        prompts[path] = [replace(each, index=first + each.index) for each in found]
        first += len(own)
    sizes = {own[0].task: max(1, len(prompts[path])) for path, own in rows.items()}
    mixture = Mixture(sizes, shares or {}, training.prompts_per_step)
    for (path, own), share in zip(rows.items(), mixture.shares, strict=True):
        _require_enough(path, len(own), len(prompts[path]), math.ceil(share * training.prompts_per_step), training)
    return [prompt for path in splits for prompt in prompts[path]]


def _prompts(path: Path, rows: Sequence[Row], renderer: PromptRenderer, training: Training) -> list[Prompt]:
    low, high = training.min_pass_rate, training.max_pass_rate
    chosen = [(at, row) for at, row in enumerate(rows) if row.pass_rate is None or low <= row.pass_rate <= high]
    if training.order == "easy_first":
        _require_pass_rates(chosen, path)
    limit = PromptLimit(
        tokens=training.max_prompt_tokens,
        reason=f"training.max_prompt_tokens is {training.max_prompt_tokens}: raise it, "
        "or set data.max_prompt_tokens to leave such rows out",
    )
    return prompts_of(chosen, renderer, limit, path)


def _require_enough(path: Path, rows: int, problems: int, needed: int, training: Training) -> None:
    if problems < needed:
        per_step = f"training.prompts_per_step ({training.prompts_per_step})"
        own = per_step if needed == training.prompts_per_step else f"the {needed} that are its part of {per_step}"
        raise UserError(
            f"{path} has {problems} problems to train on ({rows} rows, less those outside training.min_pass_rate to "
            f"max_pass_rate), fewer than {own}: lower the latter, or widen the range."
        )


def _require_pass_rates(rows: Iterable[tuple[int, Row]], source: Path) -> None:
    for index, row in rows:
        if row.pass_rate is None:
            raise UserError(
                f"{source} row {index}: training.order is easy_first, but the problem has no pass rate: set "
                "difficulty.samples, give data.pass_rates, or set training.order to shuffled."
            )
