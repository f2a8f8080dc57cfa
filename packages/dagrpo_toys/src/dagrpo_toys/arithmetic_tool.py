"""Products and sums too large for a tiny model, with a calculator.

arithmetic_tool offers it; arithmetic_alone poses the same problems without. A share of the train problems demonstrates a
call, and the rest state the answer at once: fine-tuning shows how to call, and GRPO learns that it pays. Widths are
fixed, which makes an expression easy to copy. 12*34 counts as the same problem as 34*12, and no test problem is in train.
"""

import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dagrpo.core.section import Section, Seed, Share
from dagrpo.core.types import Row
from dagrpo.data.task import Task, TaskRows, chat
from dagrpo_toys.generated_task import calling, demonstrating, distinct_in_turn, generated

if TYPE_CHECKING:
    from dagrpo.data.config import Data


class Config(Section):
    """Generated products and sums, with a calculator or without."""

    seed: Seed = Field(0, description="Seed of the problem generator.")
    train: Annotated[int, Field(ge=1, le=400_000)] = Field(10_000, description="Number of training problems.")
    test: Annotated[int, Field(ge=1, le=100_000)] = Field(
        500, description="Number of held-out problems; none of them is in train."
    )
    demonstrated_calls: Share = Field(
        0.33, description="Share of the training problems whose demonstration calls the tool; the rest answer at once."
    )


TOOL = "calculator"
LEVELS = ("product_3_digit", "sum_5_digit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculation:
    """Two numbers to be multiplied or added."""

    level: str
    first: int
    second: int

    @property
    def expression(self) -> str:
        """Return the expression as the question and the call write it."""
        return f"{self.first}{'*' if self.level == 'product_3_digit' else '+'}{self.second}"

    @property
    def value(self) -> str:
        """Return the calculator's answer."""
        return str(self.first * self.second if self.level == "product_3_digit" else self.first + self.second)


def load(params: "Data", task: str, tools: tuple[str, ...]) -> TaskRows:
    """Return the problems of `params.arithmetic_tool`, half of them of each level."""
    config = params.section(Config)
    draws = [partial(_calculation, random.Random(f"arithmetic_tool/{config.seed}/{level}"), level) for level in LEVELS]
    calculations = distinct_in_turn(
        draws, lambda each: frozenset((each.first, each.second)), "data.arithmetic_tool", config.test + config.train
    )
    share = config.demonstrated_calls if tools else 0.0
    calls = demonstrating(config.train, share, f"arithmetic_tool/{config.seed}")
    train = [_row(each, tools, index in calls) for index, each in enumerate(calculations[config.test :])]
    test = [_row(each, tools, False) for each in calculations[: config.test]]
    return generated(task, train, test, data_source="arithmetic_tool", levels=LEVELS)


def _calculation(numbers: random.Random, level: str) -> Calculation:
    low, high = (100, 999) if level == "product_3_digit" else (10_000, 99_999)
    return Calculation(level=level, first=numbers.randint(low, high), second=numbers.randint(low, high))


def _row(calculation: Calculation, tools: tuple[str, ...], calls: bool) -> Row:
    value, answer = calculation.value, f"#### {calculation.value}"
    return Row(
        prompt=chat(f"{calculation.expression}="),
        question=f"{calculation.expression}=",
        answer=answer,
        ground_truth=value,
        ability=calculation.level,
        tools=tools,
        demonstration=calling(TOOL, {"expression": calculation.expression}, value, answer) if calls else (),
    )


def task(name: str, tools: tuple[str, ...] = ()) -> Task:
    """Return the task of these problems with these tools."""
    return Task(name=name, load=partial(load, task=name, tools=tools), verifier="gsm8k", tools=tools)


TASK = task("arithmetic_tool", (TOOL,))
