"""calculator: exact arithmetic over whole numbers and decimals.

It parses + - * / ^ and parentheses, and evaluates no code. An integer result is its digits, a finite decimal is written in full,
and any other result is a fraction such as 22/7.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field

from dagrpo.tools import CallContext, StatelessTool, Tool, ToolFailure, ToolSection, function_of_text
from dagrpo_answers.arithmetic import LONGEST, parse_calculation, written

MOST_BITS = 1024  # of a result's numerator or denominator: 308 digits
FUNCTION = function_of_text(
    "calculator",
    "Compute an arithmetic expression exactly, with + - * / ^ and parentheses.",
    "expression",
    "The expression, such as (3 + 4) * 2.5",
)


class Config(ToolSection):
    """Exact arithmetic."""

    decimals: Annotated[int, Field(ge=0, le=100)] | None = Field(
        None,
        description="Decimals to which results are rounded; null: no rounding, and a fraction such as 22/7 stays a fraction.",
    )


def calculate(expression: str, decimals: int | None = None) -> str:
    """Return the value of an expression. Raises ToolFailure, which says what cannot be parsed or computed."""
    parsed = parse_calculation(expression)
    if parsed is None:
        raise ToolFailure(
            "The calculator cannot read this expression: write numbers, + - * / ^ and parentheses, at most "
            f"{LONGEST} characters, and no words, units, percent signs or equals signs."
        )
    try:
        value = parsed.bounded_value(MOST_BITS)
    except ZeroDivisionError:
        raise ToolFailure("The expression divides by zero.") from None
    except OverflowError:
        raise ToolFailure("The result, or a number on the way to it, has more than 300 digits.") from None
    except ArithmeticError:
        raise ToolFailure("An exponent is not a whole number.") from None
    return written(value if decimals is None else round(Fraction(value), decimals))


class Calculator(StatelessTool):
    """Calculator without a thread: computing takes less time than passing it to one."""

    def __init__(self, config: Config) -> None:
        self._decimals = config.decimals

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the value of arguments["expression"]."""
        return calculate(arguments["expression"], self._decimals)


TOOL = Tool(
    config=Config, functions=lambda config: [FUNCTION], open=lambda config, place: nullcontext(Calculator(config))
)
