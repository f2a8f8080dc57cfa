"""Arithmetic over exact fractions: whole numbers, + - * / and parentheses, with no eval.

An expression is read in linear time without recursion, and evaluated only when somebody asks. Not here: powers, floor
division, decimals, functions and names. A product of many long numbers is long: check the numbers before evaluating.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 1000  # characters of an expression

_TOKEN = re.compile(r"\s*+([0-9]{1,30}+(?![0-9.])|[-+*/()])")
_APPLY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "negate": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression in postfix order."""

    steps: tuple[int | str, ...]

    @property
    def numbers(self) -> list[int]:
        """The numbers that it is made of, in the order of writing."""
        return [step for step in self.steps if isinstance(step, int)]

    def value(self) -> Fraction:
        """ZeroDivisionError when it divides by zero."""
        stack: list[Fraction] = []
        for step in self.steps:
            if isinstance(step, int):
                stack.append(Fraction(step))
            elif step == "negate":
                stack.append(-stack.pop())
            else:
                right = stack.pop()
                stack.append(_APPLY[step](stack.pop(), right))
        return stack.pop()


def parse(text: str) -> Expression | None:
    """An expression; None for anything else, and for one of more than LONGEST characters."""
    tokens = _tokens(text)
    if tokens is None:
        return None
    reading = _Reading()
    return Expression(steps=tuple(reading.output)) if all(map(reading.take, tokens)) and reading.end() else None


def _tokens(text: str) -> list[str] | None:
    """Numbers, operators and parentheses in order; None when there is anything else, or nothing."""
    text = text.strip()
    if not 0 < len(text) <= LONGEST:
        return None
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(match.group(1))
        position = match.end()
    return tokens


class _Reading:
    """Dijkstra's shunting yard. `take` and `end` answer False when the text is no expression."""

    def __init__(self) -> None:
        self.output: list[int | str] = []
        self._waiting: list[str] = []  # operators and opening parentheses
        self._wants_operand = True

    def take(self, token: str) -> bool:
        """Read the next token."""
        if token.isdecimal() or token == "(":
            return self._begin_operand(token)
        if token == ")":
            return self._close()
        return self._sign(token) if self._wants_operand else self._operator(token)

    def end(self) -> bool:
        """Read that there are no more."""
        self._release(0)
        return not self._waiting and not self._wants_operand

    def _begin_operand(self, token: str) -> bool:
        if not self._wants_operand:
            return False
        if token == "(":
            self._waiting.append(token)
        else:
            self.output.append(int(token))
            self._wants_operand = False
        return True

    def _close(self) -> bool:
        if self._wants_operand:
            return False
        self._release(0)
        return bool(self._waiting) and self._waiting.pop() == "("

    def _sign(self, token: str) -> bool:
        if token == "-":
            self._waiting.append("negate")
        return token in "+-"

    def _operator(self, token: str) -> bool:
        self._release(_PRECEDENCE[token])
        self._waiting.append(token)
        self._wants_operand = True
        return True

    def _release(self, precedence: int) -> None:
        """Move the operators that bind at least as tightly, back to the last opening parenthesis."""
        while self._waiting and _PRECEDENCE.get(self._waiting[-1], -1) >= precedence:
            self.output.append(self._waiting.pop())
