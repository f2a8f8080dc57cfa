r"""Formulas in two spellings: as a data set writes them, and as a policy may; with their value in floating point."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

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
