"""Functions of one line by their steps, tested on hidden numbers.

`double, add 3` asks for a program such as `f=lambda x:(x*2)+3`. A program counts by what it returns and not by its text, so that any other
with the same results passes. No test problem is in train.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dagrpo.core.section import Section, Seed, Share
from dagrpo.core.types import Row
from dagrpo.data.task import Task, TaskRows, chat
from dagrpo_toys.generated_task import demonstrating, distinct_in_turn, generated

if TYPE_CHECKING:
    from dagrpo.data.config import Data


class Config(Section):
    """Functions of one line."""

    seed: Seed = Field(0, description="Seed of the problem generator.")
    train: Annotated[int, Field(ge=1, le=20_000)] = Field(1500, description="Number of training problems.")
    test: Annotated[int, Field(ge=1, le=500)] = Field(
        200, description="Number of held-out problems; none of them is in train."
    )
    right_demonstrations: Share = Field(
        1.0,
        description="Share of the training problems with a right demonstration; those of the others have no parentheses, "
        "so that four in ten compute something else.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step in words, as an expression of the step before, and as what it computes; a second `{}` is a number."""

    words: str
    expression: str
    value: Callable[[int, int], int]


STEPS: Mapping[str, Step] = {
    "add": Step(words="add {}", expression="{}+{}", value=lambda x, n: x + n),
    "subtract": Step(words="subtract {}", expression="{}-{}", value=lambda x, n: x - n),
    "times": Step(words="times {}", expression="{}*{}", value=lambda x, n: x * n),
    "modulo": Step(words="modulo {}", expression="{}%{}", value=lambda x, n: x % n),
    "square": Step(words="square", expression="{}**2", value=lambda x, n: x * x),
    "negate": Step(words="negate", expression="-{}", value=lambda x, n: -x),
}
LEVELS = {"one_step": 1, "two_steps": 2, "three_steps": 3}
SHARES = ("one_step", *("two_steps",) * 5, *("three_steps",) * 4)  # there are few functions of one step
INPUTS = 3  # of the tests of a problem

Steps = tuple[tuple[str, int], ...]  # name and number of each step


def question(steps: Steps) -> str:
    """Return the steps in words."""
    return ", ".join(STEPS[name].words.format(number) for name, number in steps)


def program(steps: Steps, *, parentheses: bool = True) -> str:
    """Return a program of the steps. Without parentheses it may compute something else: `x+3*2`."""
    expression = "x"
    for name, number in steps:
        inner = f"({expression})" if parentheses and expression != "x" else expression
        expression = STEPS[name].expression.format(inner, number)
    return f"f=lambda x:{expression}"


def value(steps: Steps, x: int) -> int:
    """Return what a program of the steps returns for a number."""
    for name, number in steps:
        x = STEPS[name].value(x, number)
    return x


def load(params: "Data") -> TaskRows:
    """Return the problems of `params.one_liners`."""
    config = params.section(Config)
    numbers = random.Random(f"one_liners/{config.seed}")
    drawn = distinct_in_turn(
        [partial(_draw, numbers)], lambda steps: steps, "data.one_liners", config.test + config.train
    )
    right = demonstrating(config.train, config.right_demonstrations, f"one_liners/{config.seed}")
    train = [_row(each, right=index in right) for index, each in enumerate(drawn[config.test :])]
    test = [_row(each, right=True) for each in drawn[: config.test]]
    return generated("one_liners", train, test, levels=tuple(LEVELS))


def _draw(numbers: random.Random) -> Steps:
    length = LEVELS[numbers.choice(SHARES)]
    names = [numbers.choice([*STEPS]) for _ in range(length)]
    return tuple((name, numbers.randint(2, 9) if "{}" in STEPS[name].words else 0) for name in names)


def _row(steps: Steps, *, right: bool) -> Row:
    hidden = random.Random(f"one_liners/{question(steps)}").sample(range(-20, 100), INPUTS)
    tests = [f"assert f({x}) == {value(steps, x)}" for x in hidden]
    level = next(name for name, length in LEVELS.items() if length == len(steps))
    return Row(
        prompt=chat(question(steps)),
        question=question(steps),
        answer=f"```\n{program(steps, parentheses=right)}\n```",
        ground_truth=json.dumps({"test_list": ["\n".join(tests)]}),
        verifier="unit_tests",
        ability=level,
    )


TASK = Task(name="one_liners", load=load, verifier="unit_tests")
