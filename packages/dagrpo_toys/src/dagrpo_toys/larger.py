"""The larger of two numbers, for models that speak.

A seventh of SmolLM2-135M-Instruct's samples end with the right number, so that GRPO can begin without any fine-tuning. No pair of the
test split is in train in either order.
"""

import itertools
import random
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dagrpo.core.section import Section, Seed
from dagrpo.core.types import Row
from dagrpo.data.task import Task, TaskRows, chat
from dagrpo_toys.generated_task import generated

if TYPE_CHECKING:
    from dagrpo.data.config import Data

NUMBERS = range(10, 100)  # 4,005 pairs


class Config(Section):
    """Pairs of numbers, of which the larger is asked for."""

    seed: Seed = Field(0, description="Seed of the problem generator.")
    train: Annotated[int, Field(ge=1, le=3000)] = Field(3000, description="Number of training problems.")
    test: Annotated[int, Field(ge=1, le=1000)] = Field(
        500, description="Number of held-out problems; none of their pairs is in train."
    )


def load(params: "Data") -> TaskRows:
    """Return the problems of `params.larger`."""
    config = params.section(Config)
    draw = random.Random(f"larger/{config.seed}")
    pairs = draw.sample([*itertools.combinations(NUMBERS, 2)], config.test + config.train)
    ordered = [(a, b) if draw.random() < 0.5 else (b, a) for a, b in pairs]
    rows = [_row(pair) for pair in ordered]
    return generated("larger", rows[config.test :], rows[: config.test])


def _row(pair: tuple[int, int]) -> Row:
    question, answer = f"Which is larger, {pair[0]} or {pair[1]}?", str(max(pair))
    return Row(prompt=chat(question), question=question, answer=f"#### {answer}", ground_truth=answer)


TASK = Task(name="larger", load=load, verifier="gsm8k")
