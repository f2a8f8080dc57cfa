"""A task's number of problems and prompt lengths, before and after `prepare`."""

from pathlib import Path
from typing import Any

from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.core.section import Section
from dagrpo.utils.files import read_object

CARD = "card.json"


def problems_of(params: Params, task: str, split: str) -> int | None:
    """Return the number of problems of a split; None if it is known only once the stage prepare has run."""
    count = _on_card(params, task, "counts", split)
    if isinstance(count, int):
        return count
    generated: Any = getattr(params.data, task, None)
    count = getattr(generated, split, None) if isinstance(generated, Section) else None
    most = params.data.max_train if split == "train" else params.data.max_test
    if not isinstance(count, int):
        return None
    return count if most is None else min(count, most)


def usual_prompt(params: Params, task: str, split: str) -> int:
    """Return the tokens of the median prompt, as counted by the stage prepare, else the most that are allowed."""
    lengths = _on_card(params, task, "prompt_tokens", "splits", split)
    median = lengths.get("median") if isinstance(lengths, dict) else None
    return median if isinstance(median, int) else params.training.max_prompt_tokens


def _on_card(params: Params, task: str, *keys: str) -> Any:
    """Return a value of the card; None without a card, or without that value."""
    try:
        value: Any = read_object(Path("data", params.experiment.name, task, CARD))
    except UserError:  # none yet, or damaged
        return None
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
