r"""Formulas as a policy may spell them, against those of a data set: judged as math-verify and floating point agree.

Numbers in every notation: packages/dagrpo_answers/tests/test_notations.py.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from math_verify import parse, verify
from tests.faults.fuzz.inputs import fuzzed

from dagrpo.rewards.grading import Grader
from dagrpo_answers.verifier import Extractor

PLACES: tuple[tuple[str, Extractor, str], ...] = (
    ("math", "strict", "So \\boxed{{{}}}."),
    ("math", "strict", "$\\boxed{{{}}}$"),
    ("geo3k", "flexible", "It is so.\nAnswer: {}"),
    ("math", "flexible", "<answer>{}</answer>"),
    ("math_dapo", "strict", "So it is.\n**Answer:** {}"),
    ("math_dapo", "flexible", "So \\boxed{{{}}}"),
)

SMALL = st.integers(2, 9)
ROOTS = st.sampled_from([2, 3, 5, 6, 7])  # without a whole root
TEMPLATES: dict[str, Callable[[int, int, int], float]] = {  # of a, b, c: LaTeX -> the value
    "{a}\\sqrt{{{b}}}": lambda a, b, c: a * math.sqrt(b),
    "\\frac{{{a}\\sqrt{{{b}}}}}{{{c}}}": lambda a, b, c: a * math.sqrt(b) / c,
    "{a}\\pi": lambda a, b, c: a * math.pi,
    "\\frac{{{a}\\pi}}{{{c}}}": lambda a, b, c: a * math.pi / c,
    "{a}+{c}\\sqrt{{{b}}}": lambda a, b, c: a + c * math.sqrt(b),
    "\\sqrt{{{b}}}-{a}": lambda a, b, c: math.sqrt(b) - a,
    "\\sqrt[3]{{{b}}}": lambda a, b, c: b ** (1 / 3),
    "{a}e^{{{c}}}": lambda a, b, c: a * math.exp(c),
    "\\frac{{1}}{{\\sqrt{{{b}}}}}": lambda a, b, c: 1 / math.sqrt(b),
    "{a}\\log_{{2}} {b}": lambda a, b, c: a * math.log2(b),
}
SPELLINGS = (
    ("{", "{ "), ("}", " }"), ("\\frac", "\\dfrac"), ("\\frac", "\\tfrac"), ("+", " + "), ("\\sqrt{2}", "\\sqrt2"),
    ("\\sqrt{3}", "\\sqrt 3"),
    ("{2}", "2"), ("\\pi", " \\pi "), ("\\pi", "\u03c0"), ("\\log_{2}", "\\log_2"), ("-", "\u2212"), ("\\sqrt", " \\sqrt"),
)  # fmt: skip
AROUND = (
    "{}",
    "${}$",
    "x = {}",
    "{} \\text{{ cm}}",
    "\\left({}\\right)",
    "{}.",
    "\\({}\\)",
    "\\displaystyle {}",
    "{}</s>",
    "{} cm",
    "r={}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One formula."""

    latex: str
    value: float


@st.composite
def formulas(draw: st.DrawFn) -> Formula:
    """A formula as a data set writes it."""
    latex = draw(st.sampled_from(sorted(TEMPLATES)))
    a, b, c = draw(SMALL), draw(ROOTS), draw(SMALL)
    return Formula(latex=latex.format(a=a, b=b, c=c), value=TEMPLATES[latex](a, b, c))


@st.composite
def spelled(draw: st.DrawFn, latex: str) -> str:
    """The same formula in another spelling."""
    for old, new in draw(st.lists(st.sampled_from(SPELLINGS), max_size=3, unique=True)):
        latex = latex.replace(old, new)
    return draw(st.sampled_from(AROUND)).format(latex)


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    logging.disable(logging.CRITICAL)  # math-verify's complaints
    with Grader(verify_seconds=10.0, processes=1) as grader:
        yield grader
    logging.disable(logging.NOTSET)


@fuzzed
@given(data=st.data())
def test_formulas_are_judged_as_math_verify_and_floating_point_agree(grader: Grader, data: st.DataObject) -> None:
    formula = data.draw(formulas())
    other: Formula = data.draw(st.sampled_from([formula, formula]) | formulas())
    text, (verifier, extractor, form) = data.draw(spelled(formula.latex)), data.draw(st.sampled_from(PLACES))
    same = math.isclose(formula.value, other.value, rel_tol=1e-9)
    if verify(_parsed(other.latex), _parsed(formula.latex), timeout_seconds=None) == same:  # else math-verify is wrong
        judged = grader.judge([form.format(text)], [other.latex], [verifier], extractor)
        assert judged[0].verdict == ("right" if same else "wrong")


def _parsed(latex: str) -> list[object]:
    return list(parse(f"${latex}$", parsing_timeout=None, fallback_mode="no_fallback"))
