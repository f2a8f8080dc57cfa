r"""LaTeX's shorthand written out: `\dfrac12` and `\frac{1}2` are `\frac{1}{2}`, `\sqrt3` is `\sqrt{3}`."""

import re

_SIZED_FRACTION = re.compile(r"\\[dt]frac")
_FRACTION = re.compile(r"\\frac(?:([0-9A-Za-z])|(\{[^{}]*+\}))(?:([0-9A-Za-z])|(\{[^{}]*+\}))")
_ROOT = re.compile(r"\\sqrt([0-9A-Za-z])")


def written_out(latex: str) -> str:
    """The same LaTeX with braces around every part of a fraction and of a root, in linear time."""
    fractions = _FRACTION.sub(_with_braces, _SIZED_FRACTION.sub(r"\\frac", latex))
    return _ROOT.sub(r"\\sqrt{\1}", fractions)


def _with_braces(fraction: re.Match[str]) -> str:
    above, above_braced, below, below_braced = fraction.groups()
    return f"\\frac{above_braced or f'{{{above}}}'}{below_braced or f'{{{below}}}'}"
