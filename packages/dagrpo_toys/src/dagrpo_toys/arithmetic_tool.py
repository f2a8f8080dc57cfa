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
from dagrpo_toys.generated_task import answer_message, call_message, demonstrating, distinct, generated, result_message

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
    calculations = _calculations(config)
    share = config.demonstrated_calls if tools else 0.0
    calling = demonstrating(config.train, share, f"arithmetic_tool/{config.seed}")
    train = [_row("train", i, each, tools, i in calling) for i, each in enumerate(calculations[config.test :])]
    test = [_row("test", i, each, tools, False) for i, each in enumerate(calculations[: config.test])]
    return generated(task, {"train": train, "test": test}, levels=LEVELS)


def _calculations(config: Config) -> list[Calculation]:
    """Return the test problems, then those of train, the levels in turn."""
    streams = [
        distinct(
            partial(_calculation, random.Random(f"arithmetic_tool/{config.seed}/{level}"), level),
            lambda each: frozenset((each.first, each.second)),
            "data.arithmetic_tool",
        )
        for level in LEVELS
    ]
    return [next(streams[number % len(streams)]) for number in range(config.test + config.train)]


def _calculation(numbers: random.Random, level: str) -> Calculation:
    low, high = (100, 999) if level == "product_3_digit" else (10_000, 99_999)
    return Calculation(level=level, first=numbers.randint(low, high), second=numbers.randint(low, high))


def _row(split: str, index: int, calculation: Calculation, tools: tuple[str, ...], calls: bool) -> Row:
    answer = f"#### {calculation.value}"
    turns = (
        call_message(TOOL, {"expression": calculation.expression}),
        result_message(calculation.value),
        answer_message(answer),
    )
    return Row(
        task="arithmetic_tool",
        split=split,
        index=index,
        prompt=chat(f"{calculation.expression}="),
        question=f"{calculation.expression}=",
        answer=answer,
        ground_truth=calculation.value,
        data_source="arithmetic_tool",
        ability=calculation.level,
        tools=tools,
        demonstration=turns if calls else (),
    )


def task(name: str, tools: tuple[str, ...] = ()) -> Task:
    """Return the task of these problems with these tools."""
    return Task(name=name, load=partial(load, task=name, tools=tools), verifier="gsm8k", tools=tools)


TASK = task("arithmetic_tool", (TOOL,))
