"""Countdown: equations read without eval, exact, with exactly the given numbers."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo_answers import arithmetic
from dagrpo_answers.verifiers.countdown import check, equal, extract, formatted

RIGHT: list[tuple[str, list[int], int]] = [
    ("(3 + 5) * 3", [3, 3, 5], 24), ("8 / (3 - 8 / 3)", [8, 8, 3, 3], 24), ("-3 + 5", [3, 5], 2), ("3 - 5", [3, 5], -2),
    ("((7))", [7], 7), ("1 / 3 * 3", [1, 3, 3], 1),
]  # fmt: skip
WRONG = (  # of 3, 4 and 6 for 24
    "(6 - 4 / 4) * 3", "6 * 4 * 3 / 3", "6 * 4", "6 * (4 + 3 - 3)", "(4 - 3 + 6)", "6*4*3", "24", "6 / (3 / 4 - 6)", "",
    "3 + 4 +", "46 - 3",
)  # fmt: skip


def test_an_equation_of_the_numbers_alone_that_makes_the_target_is_right() -> None:
    for answer, numbers, target in RIGHT:
        assert equal(answer, json.dumps({"numbers": numbers, "target": target})) is True
    assert [answer for answer in WRONG if equal(answer, '{"numbers": [3, 4, 6], "target": 24}') is not False] == []
    assert equal("(3+5)*3 = 24", '{"numbers": [3, 3, 5], "target": 24}') is False
    assert formatted("<answer>6 / (3 - 3)</answer>")
    assert equal("6 / (3 - 3)", '{"numbers": [6, 3, 3], "target": 0}') is False


@pytest.mark.parametrize(
    "answer",
    [
        "3 ** 2", "3 // 2", "3 2", "3(2)", "(3)(2)", "3.0 + 2", "3e2", "3 + x", "__import__('os')", "3 + 2)", "(3 + 2",
        "()", "3 + * 2", "* 3", "3 /", "\u0663 + 2", "9" * 31, "1+" * 600 + "1",
    ],
)  # fmt: skip
def test_what_is_no_bounded_arithmetic_is_no_expression(answer: str) -> None:
    assert arithmetic.parse(answer) is None
    assert not formatted(f"<answer>{answer}</answer>")


# text -> strict, exact
@pytest.mark.parametrize(
    ("text", "strict", "exact"),
    [
        ("<answer>(3+5)*3</answer>", "(3+5)*3", "(3+5)*3"),
        ("<answer>(3+5)*3 = 24</answer>", "(3+5)*3", "(3+5)*3 = 24"),
        ("<answer>(3+5)\u00d73</answer>", "(3+5)*3", "(3+5)*3"),
        ("<answer>6\u00f73</answer> so", "6/3", None),
        ("(3+5)*3", None, None),
        ("<answer>= 24</answer>", None, "= 24"),
    ],
)
def test_the_equation_is_read_out_of_its_tags(text: str, strict: str | None, exact: str | None) -> None:
    assert extract(text, "strict") == strict
    assert extract(text, "exact") == exact


@pytest.mark.parametrize(
    "truth",
    [
        "", "24", "[]", "{}", '{"numbers": [], "target": 24}', '{"numbers": [3.5], "target": 24}',
        '{"numbers": [true], "target": 24}', '{"numbers": [-3], "target": 24}', '{"numbers": [3], "target": "24"}',
        '{"numbers": [3], "target": true}', '{"numbers": 3, "target": 24}', '{"numbers": [3]}', "[" * 10_000,
    ],
)  # fmt: skip
def test_a_ground_truth_that_is_no_puzzle_is_refused(truth: str) -> None:
    with pytest.raises(ValueError, match=r"is not a puzzle .*\.$"):
        check(truth)


EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: f"({' '.join(parts)})")
        | inner.map(lambda operand: f"(-{operand})")
    ),
    max_leaves=12,
)


@given(EXPRESSIONS)
def test_an_expression_has_the_value_that_exact_fractions_give(text: str) -> None:
    expression = arithmetic.parse(text)
    assert expression is not None
    try:
        value = expression.bounded_value(1 << 14)
    except ZeroDivisionError:
        return
    assert value == _value(text)[0]


def _value(text: str) -> tuple[Fraction, str]:
    """The value of a fully parenthesised expression by recursive descent, and the text after it."""
    if not text.startswith("("):
        digits = text[: len(text) - len(text.lstrip("0123456789"))]
        return Fraction(int(digits)), text[len(digits) :]
    if text.startswith("(-"):
        value, rest = _value(text[2:])
        return -value, rest[1:]
    left, rest = _value(text[1:])
    right, after = _value(rest[3:])
    operations = {"+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right}
    return operations.get(rest[1], lambda: left / right)(), after[1:]
