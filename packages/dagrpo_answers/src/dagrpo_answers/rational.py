r"""Exact values of rational arithmetic in LaTeX or plain text.

Numbers as in numbers.py, mixed numbers (`7 1/2`, `7\frac{1}{2}`: a whole number and a proper fraction), + - * / and ^ with whole
exponents, `\frac`, `\binom`, `\cdot`, `\times`, `\div`, brackets. Only a mixed number, a number and a
bracket (`2(3)`), and powers (`2^3 3^2`) may stand side by side; any other such numbers are several answers. math-verify reads
roots, names and functions.
"""

import re
from fractions import Fraction
from math import comb

from dagrpo_answers.arithmetic import bounded
from dagrpo_answers.numbers import NUMERAL, value_of

MOST_BITS = 4096  # of a numerator or denominator
DEEPEST = 40  # brackets and braces inside each other
_LARGEST_BINOMIAL = 2000

_SIGNS = {"+": "+", "-": "-"}
_OPERATORS = {"*": "*", "/": "/", "\\cdot": "*", "\\times": "*", "\\ast": "*", "\\div": "/"}
_OPERATOR = re.compile(r" *+(\*(?!\*)|/|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|\\ast(?![A-Za-z])|\\div(?![A-Za-z]))")
_POWER = re.compile(r" *+(?:\^|\*\*) *+")
_COMMAND = re.compile(r" *+\\(frac|binom) *+\{")
_MIXED = re.compile(
    r" *+\\frac *+\{ *+([0-9]{1,300}+) *+\} *+\{ *+([0-9]{1,300}+) *+\}| ([0-9]{1,300}+)/([0-9]{1,300}+)"
)
_WHOLE = re.compile(r"[0-9, ]++")
_BARE_MIXED = re.compile(r"([0-9]{1,300}+) ([0-9]{1,300}+)/([0-9]{1,300}+)(?![0-9])")
_CLOSING = {"(": ")", "{": "}", "[": "]"}


class NoNumber(Exception):
    """The text is no arithmetic over rational numbers."""


def rational(text: str) -> Fraction | None:
    """Return the value, or None if `text` is not rational arithmetic. Raises OverflowError for a value beyond the limit.

    Linear time but for the size of numbers.
    """
    reading = _Reading(text)
    try:
        value = reading.sum_of_terms(0)
    except (NoNumber, ZeroDivisionError):
        return None
    except OverflowError:
        raise
    except ArithmeticError:  # a power that is no whole number
        return None
    reading.space()
    return value if reading.at == len(text) else None


class _Reading:
    """Recursive descent, as deep as DEEPEST."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def space(self) -> None:
        """Go past spaces."""
        while self._text.startswith(" ", self.at):
            self.at += 1

    def sum_of_terms(self, depth: int) -> Fraction:
        """Terms with + and - between them."""
        value = self._term(depth)
        while sign := self._sign():
            value = _applied(sign, value, self._term(depth))
        return value

    def _sign(self) -> str:
        self.space()
        sign = self._text[self.at : self.at + 1]
        if sign not in _SIGNS:
            return ""
        self.at += 1
        return sign

    def _term(self, depth: int) -> Fraction:
        """Factors; with several signs before one, it is no number."""
        negative = self._sign() == "-"
        value, power = self._factor(depth)
        while True:
            operator = _OPERATOR.match(self._text, self.at)
            if operator:
                self.at = operator.end()
                sign = self._sign()
                factor, power = self._factor(depth)
                factor = -factor if sign == "-" else factor
                value = _applied(_OPERATORS[operator.group(1)], value, factor)
                continue
            self.space()
            if not self._begins_a_factor():
                return -value if negative else value
            bracket = self._text[self.at] == "("
            factor, next_power = self._factor(depth)
            if not (bracket or power or next_power):
                raise NoNumber
            value, power = _applied("*", value, factor), next_power

    def _begins_a_factor(self) -> bool:
        return self._text[self.at : self.at + 1] in tuple("0123456789.(") or bool(_COMMAND.match(self._text, self.at))

    def _factor(self, depth: int) -> tuple[Fraction, bool]:
        """Return a number, a bracket or a fraction, and whether it has an exponent."""
        value = self._operand(depth)
        power = _POWER.match(self._text, self.at)
        if power is None:
            return value, False
        self.at = power.end()
        negative = self._sign() == "-"
        exponent = self._operand(depth)
        if _POWER.match(self._text, self.at):  # TeX refuses 2^3^2, and people mean either
            raise NoNumber
        return _applied("^", value, -exponent if negative else exponent), True

    def _operand(self, depth: int) -> Fraction:
        if depth > DEEPEST:
            raise NoNumber
        self.space()
        opening = self._text[self.at : self.at + 1]
        if opening in ("(", "{"):
            self.at += 1
            return self._closed(_CLOSING[opening], depth)
        command = _COMMAND.match(self._text, self.at)
        if command:
            self.at = command.end()
            above = self._closed("}", depth)
            self.space()
            if self._text[self.at : self.at + 1] != "{":
                raise NoNumber
            self.at += 1
            below = self._closed("}", depth)
            return _applied("/", above, below) if command.group(1) == "frac" else _binomial(above, below)
        return self._number()

    def _closed(self, closing: str, depth: int) -> Fraction:
        """Return the value up to a closing bracket."""
        value = self.sum_of_terms(depth + 1)
        self.space()
        if self._text[self.at : self.at + 1] != closing:
            raise NoNumber
        self.at += 1
        return value

    def _number(self) -> Fraction:
        mixed = _BARE_MIXED.match(self._text, self.at)  # before 7 123/500 is taken for 7,123 / 500
        numeral = None if mixed else NUMERAL.match(self._text, self.at)
        if mixed:
            self.at = mixed.end()
            return _mixed(Fraction(int(mixed.group(1))), mixed.group(2), mixed.group(3))
        if numeral is None:
            raise NoNumber
        value = value_of(numeral)
        self.at = numeral.end()
        fraction = _MIXED.match(self._text, self.at) if _WHOLE.fullmatch(numeral.group()) else None
        if fraction is None:
            return value
        self.at = fraction.end()
        return _mixed(value, fraction.group(1) or fraction.group(3), fraction.group(2) or fraction.group(4))


def _mixed(whole: Fraction, above: str, below: str) -> Fraction:
    """Return a whole number and a proper fraction; 7 3/2 is a product to some, and no number."""
    if int(above) >= int(below):
        raise NoNumber
    return whole + Fraction(int(above), int(below))


def _binomial(above: Fraction, below: Fraction) -> Fraction:
    if above.denominator != 1 or below.denominator != 1 or not 0 <= below <= above <= _LARGEST_BINOMIAL:
        raise NoNumber
    return Fraction(comb(int(above), int(below)))


def _applied(operation: str, left: Fraction, right: Fraction) -> Fraction:
    return Fraction(bounded(operation, left, right, MOST_BITS))
