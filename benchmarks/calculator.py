"""Expressions per second of the calculator tool, beside Python's own parser with a walk over its tree, in one run.

    python benchmarks/calculator.py

The peer is what calculators for language models commonly do: `ast.parse`, then a function per node over exact fractions.
It bounds nothing. Expressions are drawn with a fixed seed; every speed is the median of 5, on one core.
"""

import ast
import operator
import random
import statistics
import time
from collections.abc import Callable, Sequence
from fractions import Fraction

from dagrpo.tools.calculator import calculate

REPEATS = 5
EXPRESSIONS = 5000
_APPLY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def walked(expression: str) -> Fraction:
    """The value by Python's parser."""
    return _value(ast.parse(expression, mode="eval").body)


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.BinOp(left=left, op=operation, right=right):
            value: Fraction = _APPLY[type(operation)](_value(left), _value(right))
            return value
    raise ValueError(ast.dump(node))


def products_and_sums(draw: random.Random) -> str:
    """As the task arithmetic_tool has them."""
    if draw.random() < 0.5:
        return f"{draw.randint(100, 999)}*{draw.randint(100, 999)}"
    return f"{draw.randint(10_000, 99_999)}+{draw.randint(10_000, 99_999)}"


def word_problems(draw: random.Random) -> str:
    """Four numbers, one of them a decimal, with parentheses."""
    numbers = [draw.randint(1, 500) for _ in range(3)]
    return f"({numbers[0]} + {numbers[1]}) * {draw.randint(1, 99)}.{draw.randint(1, 99):02d} / {numbers[2]}"


def per_second(compute: Callable[[str], object], expressions: Sequence[str]) -> float:
    """Median speed."""
    speeds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        for expression in expressions:
            compute(expression)
        speeds.append(len(expressions) / (time.perf_counter() - begun))
    return statistics.median(speeds)


def main() -> None:
    """Print a table."""
    print("| expressions per second and core | calculator | ast.parse and a walk | ratio |\n|---|---|---|---|")
    for kind in (products_and_sums, word_problems):
        draw = random.Random(0)
        expressions = [kind(draw) for _ in range(EXPRESSIONS)]
        ours, peer = per_second(calculate, expressions), per_second(walked, expressions)
        print(f"| {kind.__name__.replace('_', ' ')} | {ours:,.0f} | {peer:,.0f} | {ours / peer:.2f} |")


if __name__ == "__main__":
    main()
