r"""Spellings of LaTeX made uniform: `sqrt(2)`, `!=`, `\leq`, `{1 \over 2}`.

symbols.py converts unicode, numerals.py spaces and separators, shorthand.py arguments without braces.
"""

import re

_COMMANDS = {
    "neq": "\\ne",
    "leq": "\\le",
    "geq": "\\ge",
    "lt": "<",
    "gt": ">",
    "textdegree": "\\degree",
    "varnothing": "\\emptyset",
}
_COMMAND = re.compile(rf"\\({'|'.join(_COMMANDS)})(?![A-Za-z])")
_SIGNS = {"<=": "\\le ", ">=": "\\ge ", "!=": "\\ne ", "==": "=", "<>": "\\ne ", "**": "^"}
_TWO_SIGNS = re.compile(r"<=|>=|!=|==|<>|(?<=[A-Za-z0-9)}])\*\*(?=[-A-Za-z0-9({\\])")
_IN_PLAIN_TEXT = {"infinity": "\\infty", "oo": "\\infty"}
_NAME = re.compile(r"(?<![A-Za-z\\])(sqrt|pi|theta|sin|cos|tan|sec|csc|cot|ln|log|exp|infinity|oo)(?![A-Za-z])")
_OVER = re.compile(r"\{?([^{}\\]*+)\\over(?![A-Za-z])([^{}]*+)\}?")
_UPRIGHT = re.compile(r"\\(?:mathrm|text|mathit) *+\{ *+([ei]) *+\}")  # the constants
_BLACKBOARD = re.compile(r"\\mathbb *+([A-Z])(?![A-Za-z])")
_DIGITS_AS_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf) *+\{ *+([0-9.]*+|\\?\$) *+\}")


def usual(latex: str) -> str:
    """Return a text in the spelling that the grammar knows, in linear time."""
    if latex.isdecimal():
        return latex
    latex = _TWO_SIGNS.sub(lambda signs: _SIGNS[signs.group()], latex)
    if "\\" in latex:
        latex = _COMMAND.sub(lambda command: _COMMANDS[command.group(1)], latex)
        latex = _BLACKBOARD.sub(r"\\mathbb{\1}", _UPRIGHT.sub(r" \1 ", latex))
        latex = _DIGITS_AS_TEXT.sub(lambda text: " \\$ " if "$" in text.group() else f" {text.group(1)} ", latex)
        over = _OVER.fullmatch(latex) if "\\over" in latex else None
        latex = f"\\frac{{{over.group(1)}}}{{{over.group(2)}}}" if over else latex
    return _NAME.sub(lambda name: _IN_PLAIN_TEXT.get(name.group(), f"\\{name.group()} "), latex)
