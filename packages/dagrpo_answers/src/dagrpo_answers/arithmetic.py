"""Arithmetic over exact fractions, without eval.

`parse` reads whole numbers, + - * / and parentheses; `parse_calculation` also decimals, thousands with commas, and powers.
An expression is parsed in linear time without recursion, and evaluated on demand. Floor division, percentages,
functions and names are not read.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 1000  # characters of an expression

_TOKEN = re.compile(r"\s*+([0-9]{1,30}+(?![0-9.])|[-+*/()])")
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,10}+|[0-9]{1,30}+)(?:\.[0-9]{1,30}+)?+|\.[0-9]{1,30}+"
_CALCULATION = re.compile(rf"\s*+((?:{_NUMBER})(?![0-9.,])|\*\*|[-+*/^()])")
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "negate": 3, "^": 4}
_OPERATORS = {"+": "+", "-": "-", "*": "*", "/": "/", "^": "^", "**": "^"}
_RELEASES = {**_PRECEDENCE, "^": 5}  # 2^3^2 is 2^(3^2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression in postfix order."""

    steps: tuple[int | Fraction | str, ...]

    @property
    def numbers(self) -> list[int]:
        """Return the whole numbers of the expression, in the order of writing."""
        return [step for step in self.steps if isinstance(step, int)]

    def bounded_value(self, bits: int) -> int | Fraction:
        """Return the value, a whole one as int.

        Raises OverflowError as soon as the numerator or denominator of a step takes more than `bits` bits, and before
        computing a power that would; ArithmeticError for an exponent that is not a whole number; ZeroDivisionError.
        """
        stack: list[int | Fraction] = []
        for step in self.steps:
            if isinstance(step, str):
                right = stack.pop()
                step = -right if step == "negate" else bounded(step, stack.pop(), right, bits)
            stack.append(step)
        return stack.pop()


def written(value: int | Fraction) -> str:
    """Return a number as digits, as a finite decimal in full, or as a fraction in lowest terms."""
    twos, fives, rest = 0, 0, value.denominator
    while rest % 2 == 0:
        twos, rest = twos + 1, rest // 2
    while rest % 5 == 0:
        fives, rest = fives + 1, rest // 5
    if rest > 1 or value.denominator == 1:
        return str(value)
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def bounded(operation: str, left: int | Fraction, right: int | Fraction, bits: int) -> int | Fraction:
    """Return one step of a calculation: + - * / or ^. OverflowError, ArithmeticError, ZeroDivisionError as bounded_value."""
    value: int | Fraction
    if operation == "*":
        value = left * right
    elif operation == "+":
        value = left + right
    elif operation == "-":
        value = left - right
    elif operation == "/":
        value = Fraction(left, right)
    else:
        value = _power(left, right, bits)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > bits:
        raise OverflowError
    return value.numerator if value.denominator == 1 else value


def _power(base: int | Fraction, exponent: int | Fraction, bits: int) -> int | Fraction:
    if exponent.denominator != 1:
        raise ArithmeticError(f"the exponent {exponent} is not a whole number")
    size = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
    power = int(exponent)
    if size > 1 and (size - 1) * abs(power) > bits:  # the larger of numerator and denominator is at least 2^(size-1)
        raise OverflowError
    if size <= 1:
        # Powers of -1, 0 and 1 stay small, however long the exponent is: one of the same sign and parity will do.
        power = (2 - power % 2) * ((power > 0) - (power < 0))
    return Fraction(base) ** power


def parse(text: str) -> Expression | None:
    """Return an expression; None for anything else, and for one of more than LONGEST characters."""
    return _parse(text, _TOKEN)


def parse_calculation(text: str) -> Expression | None:
    """Parse like `parse`, with decimals (0.5, .5), thousands (1,000) and powers (2^10, 2**10) that bind as in Python."""
    return _parse(text, _CALCULATION)


def _parse(text: str, token: re.Pattern[str]) -> Expression | None:
    tokens = _tokens(text, token)
    if tokens is None:
        return None
    reading = _Reading()
    return Expression(steps=tuple(reading.output)) if all(map(reading.take, tokens)) and reading.end() else None


def _tokens(text: str, token: re.Pattern[str]) -> list[str] | None:
    """Numbers, operators and parentheses in order; None when there is anything else, or nothing."""
    text = text.strip()
    if not 0 < len(text) <= LONGEST:
        return None
    tokens = []
    position = 0
    while position < len(text):
        match = token.match(text, position)
        if match is None:
            return None
        tokens.append(match.group(1))
        position = match.end()
    return tokens


def _decimal(token: str) -> int | Fraction:
    whole, _, decimals = token.replace(",", "").partition(".")
    return Fraction(int(whole + decimals), 10 ** len(decimals)) if decimals else int(whole)


class _Reading:
    """Dijkstra's shunting yard. `take` and `end` answer False when the text is no expression."""

    def __init__(self) -> None:
        self.output: list[int | Fraction | str] = []
        self._waiting: list[str] = []  # operators and opening parentheses
        self._wants_operand = True

    def take(self, token: str) -> bool:
        """Read the next token."""
        if token not in _OPERATORS:
            return self._close() if token == ")" else self._begin_operand(token)
        return self._sign(token) if self._wants_operand else self._operator(_OPERATORS[token])

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
            self.output.append(int(token) if token.isdecimal() else _decimal(token))
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
        self._release(_RELEASES[token])
        self._waiting.append(token)
        self._wants_operand = True
        return True

    def _release(self, precedence: int) -> None:
        """Move the operators that bind at least as tightly, back to the last opening parenthesis."""
        while self._waiting and _PRECEDENCE.get(self._waiting[-1], -1) >= precedence:
            self.output.append(self._waiting.pop())
