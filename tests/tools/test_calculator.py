"""The calculator: exact, within bounds, and an answer for whatever a policy writes."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.tools.calls import called

from dagrpo.tools import ToolFailure
from dagrpo.tools.calculator import Config, calculate
from dagrpo_answers import arithmetic


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("123 * 456", "56088"),
        ("0.1 + 0.2", "0.3"),
        ("1/8", "0.125"),
        ("-1/8", "-0.125"),
        ("22/7", "22/7"),
        ("1/3 + 0.25", "7/12"),
        ("1,234,567 + 1", "1234568"),
        (".5 * 3", "1.5"),
        ("-2^2", "-4"),
        ("2^3^2", "512"),
        ("2^-1^2", "0.5"),
        ("2**10", "1024"),
        ("0^0", "1"),
        ("(-1)^999999999999999999999999999999", "-1"),
        ("1^-999999999999999999999999999998", "1"),
        (" ( (7) ) ", "7"),
        ("100000000000000000000000000001 - 1", "100000000000000000000000000000"),
    ],
)
def test_results_are_exact(expression: str, result: str) -> None:
    assert called("calculator", expression=expression) == result


@pytest.mark.parametrize(("decimals", "result"), [(0, "3"), (2, "3.14"), (4, "3.1429")])
def test_results_are_rounded_where_that_is_asked_for(decimals: int, result: str) -> None:
    assert called("calculator", Config(decimals=decimals), expression="22/7") == result
    assert called("calculator", Config(decimals=decimals), expression="6*7") == "42"


@pytest.mark.parametrize(
    "expression",
    [
        "", "2 +", "(1", "1)", "()", "2(3)", "1 2", "5.", "1.2.3", "1,00", "10,000,00", "3e5", "15%", "x", "2 = 2", "7 // 2",
        "abs(-1)", "__import__('os').system('true')", "1" * 31, "+" * 999, "(" * 1001,
        "1+" * 500 + "1", "\u0661", "\u00bd", "\x00", "\ud800",
    ],
)  # fmt: skip
def test_what_is_no_expression_is_answered_with_what_can_be_read(expression: str) -> None:
    with pytest.raises(ToolFailure, match="cannot read this expression: write numbers"):
        calculate(expression)


@pytest.mark.parametrize(
    ("words", "expressions"),
    [
        ("divides by zero", ["1/0", "1/(2-2)", "0^-1", "3/(0.1+0.2-0.3)"]),
        ("exponent is not a whole number", ["4^0.5", "(-8)^(1/3)"]),
        (
            "more than 300 digits",  # any of the powers, computed, would take hours
            ["9^9^9^9", "2^1024", "2^-1024", "*".join(["9" * 30] * 12), "0.5^99999", f"(1/3)^{'9' * 30}"],
        ),
    ],
)
def test_what_cannot_be_computed_is_told(words: str, expressions: list[str]) -> None:
    for expression in expressions:
        with pytest.raises(ToolFailure, match=words):
            calculate(expression)
    assert calculate("10^300") == "1" + "0" * 300


Written = tuple[str, str]  # an expression, and the same for Python with fractions in the place of numbers
_DIGITS = st.integers(0, 10**6).map(str) | st.decimals(0, 1000, places=2).map(str)
_NUMBERS = _DIGITS.map(lambda digits: (digits, f"Fraction('{digits}')"))
_POWERS = st.tuples(_NUMBERS, st.integers(-3, 4)).map(
    lambda pair: (f"({pair[0][0]}^{pair[1]})", f"({pair[0][1]}**{pair[1]})")
)


def _compound(inner: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    def joined(parts: tuple[Written, str, Written]) -> Written:
        (left, exact_left), operator, (right, exact_right) = parts
        return f"{left} {operator} {right}", f"{exact_left} {operator} {exact_right}"

    return (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(joined)
        | inner.map(lambda pair: (f"({pair[0]})", f"({pair[1]})"))
        | inner.map(lambda pair: (f"-{pair[0]}", f"-{pair[1]}"))
    )


@given(st.recursive(_NUMBERS | _POWERS, _compound, max_leaves=8))
def test_values_are_pythons_own(pair: Written) -> None:
    expression, for_python = pair
    assume(len(expression) <= arithmetic.LONGEST)
    try:
        value = eval(for_python, {"Fraction": Fraction})  # noqa: S307 - the test wrote it
    except ZeroDivisionError:
        with pytest.raises(ToolFailure, match="divides by zero"):
            calculate(expression)
        return
    assert Fraction(calculate(expression)) == value


@given(st.text(alphabet="0123456789.,+-*/^() e%=x", max_size=60) | st.text())
def test_whatever_is_written_gets_an_answer(expression: str) -> None:
    try:
        result = calculate(expression)
    except ToolFailure as failure:
        result = str(failure)
    assert 0 < len(result) < 2 * 1024
