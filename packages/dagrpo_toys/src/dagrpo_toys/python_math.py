"""Numbers that need a short Python program: digit sums, divisors, primes.

The program is one line without a quotation mark, and its numbers stand in the question in the order in which it takes them. A
share of the train problems demonstrates it, and the rest state the answer at once. No test problem is in train.
"""

import math
import random
from collections.abc import Callable, Mapping
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
    """Numbers that a short program gives."""

    seed: Seed = Field(0, description="Seed of the problem generator.")
    train: Annotated[int, Field(ge=1, le=8000)] = Field(6000, description="Number of training problems.")
    test: Annotated[int, Field(ge=1, le=2000)] = Field(
        300, description="Number of held-out problems; none of them is in train."
    )
    demonstrated_calls: Share = Field(
        0.5, description="Share of the training problems whose demonstration runs a program; the rest answer at once."
    )


TOOL = "code_interpreter"
PRIMES = tuple(n for n in range(2, 1000) if all(n % d for d in range(2, math.isqrt(n) + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A question with places for numbers, a program with the same places, and what the program prints."""

    draw: Callable[[random.Random], tuple[int, ...]]
    question: str
    program: str
    value: Callable[..., int]


def _digit_sum(base: int, exponent: int) -> int:
    return sum(map(int, str(base**exponent)))


def _greatest_divisor(a: int, b: int, c: int, d: int) -> int:
    return math.gcd(a + b, c + d)


def _primes(first: int, last: int) -> int:
    return sum(first <= prime <= last for prime in PRIMES)


def _power(numbers: random.Random) -> tuple[int, ...]:
    return numbers.randint(11, 99), numbers.randint(11, 99)


def _sums(numbers: random.Random) -> tuple[int, ...]:
    """Return two sums with a common divisor of two digits, so that the answer is seldom 1."""
    divisor = numbers.randint(11, 49)
    sums = [divisor * numbers.randint(2000 // divisor + 1, 9999 // divisor) for _ in range(2)]
    firsts = [numbers.randint(1000, total - 1000) for total in sums]
    return firsts[0], sums[0] - firsts[0], firsts[1], sums[1] - firsts[1]


def _range(numbers: random.Random) -> tuple[int, ...]:
    return numbers.randint(100, 499), numbers.randint(500, 999)


KINDS: Mapping[str, Kind] = {
    "digit_sum": Kind(
        draw=_power,
        question="Sum of the digits of {}**{}?",
        program="print(sum(map(int,str({}**{}))))",
        value=_digit_sum,
    ),
    "greatest_divisor": Kind(
        draw=_sums,
        question="Greatest common divisor of {}+{} and {}+{}?",
        program="import math;print(math.gcd({}+{},{}+{}))",
        value=_greatest_divisor,
    ),
    "primes": Kind(
        draw=_range,
        question="How many primes are there from {} to {}?",
        program="print(sum(all(n%d for d in range(2,n)) for n in range({},{}+1)))",
        value=_primes,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """One problem: its kind, and the numbers in it."""

    level: str
    numbers: tuple[int, ...]

    @property
    def question(self) -> str:
        return KINDS[self.level].question.format(*self.numbers)

    @property
    def program(self) -> str:
        return KINDS[self.level].program.format(*self.numbers)

    @property
    def value(self) -> str:
        return str(KINDS[self.level].value(*self.numbers))


def load(params: "Data") -> TaskRows:
    """Return the problems of `params.python_math`, the kinds in turn."""
    config = params.section(Config)
    draws = [partial(_draw, random.Random(f"python_math/{config.seed}/{level}"), level) for level in KINDS]
    puzzles = distinct_in_turn(draws, lambda puzzle: puzzle.numbers, "data.python_math", config.test + config.train)
    running = demonstrating(config.train, config.demonstrated_calls, f"python_math/{config.seed}")
    train = [_row(each, index in running) for index, each in enumerate(puzzles[config.test :])]
    test = [_row(each, False) for each in puzzles[: config.test]]
    return generated("python_math", train, test, levels=tuple(KINDS))


def _draw(numbers: random.Random, level: str) -> Puzzle:
    return Puzzle(level=level, numbers=KINDS[level].draw(numbers))


def _row(puzzle: Puzzle, runs: bool) -> Row:
    value, answer = puzzle.value, f"#### {puzzle.value}"
    return Row(
        prompt=chat(puzzle.question),
        question=puzzle.question,
        answer=answer,
        ground_truth=value,
        ability=puzzle.level,
        tools=(TOOL,),
        demonstration=calling(TOOL, {"code": puzzle.program}, f"{value}\n", answer) if runs else (),
    )


TASK = Task(name="python_math", load=load, verifier="gsm8k", tools=(TOOL,))
