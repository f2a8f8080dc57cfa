r"""Spellings of LaTeX made uniform.

`usual` replaces spellings that the grammar does not know: `sqrt(2)`, `!=`, `\leq`, `{1 \over 2}`. `written_out` adds the braces that
people leave out: `\frac 1 2` becomes `\frac{1}{2}`, `2^10` becomes `2^{10}`. Without braces TeX takes one token, and so does this,
except that the digits of a power and of an index stay together, as people mean them (`2^10`, `\log_10 100`). Nothing is parsed: text
that is not LaTeX stays unchanged. numbers.py converts unicode, numbers.py spaces and separators.
"""

import re

from dagrpo_answers.numbers import ROOTED

_TOKEN = re.compile(r"\\[A-Za-z]++|\\.|[0-9]++|\s++|.", re.DOTALL)
_FRACTIONS = frozenset({"\\frac", "\\dfrac", "\\tfrac", "\\cfrac"})
_BINOMIALS = frozenset({"\\binom", "\\dbinom", "\\tbinom"})
_ARGUMENTS = dict.fromkeys(_FRACTIONS | _BINOMIALS, 2) | dict.fromkeys(
    ("\\sqrt", "\\overline", "\\bar", "\\dot", "^", "_"), 1
)
_NAMES = dict.fromkeys(_FRACTIONS, "\\frac") | dict.fromkeys(_BINOMIALS, "\\binom")
_SHORT = re.compile(
    r"[_^]|\\(?:[dtc]?frac|[dt]?binom|sqrt|overline|bar|dot)"
)  # without any of these the text stays as it is


def written_out(latex: str) -> str:
    """Return the LaTeX with braces around every argument, in linear time."""
    if _SHORT.search(latex) is None:
        return latex
    writing = _Writing()
    tokens = _TOKEN.findall(latex)
    tokens.reverse()
    while tokens:
        writing.take(tokens.pop(), tokens)
    return "".join(writing.output)


class _Writing:
    """The output so far, and the commands whose arguments are still to come."""

    def __init__(self) -> None:
        self.output: list[str] = []
        # Each command's name, and how many arguments it waits for; a brace that was opened inside it waits for none.
        self._waiting: list[tuple[str, int]] = []

    def take(self, token: str, rest: list[str]) -> None:
        """Write a token. `rest` holds those after it, the next one last: what one argument leaves of digits goes back there."""
        command, missing = self._waiting[-1] if self._waiting else ("", 0)
        if token.isspace():
            if not missing:
                self.output.append(token)
        elif token in _ARGUMENTS:
            self._open(token, missing, rest)
        elif token == "{":
            self._waiting.append(("{", 0))
            self.output.append("{")
        elif token == "}":
            self._close()
        elif missing:
            self._argument(command, token, rest)
        else:
            self.output.append(token)

    def _open(self, token: str, missing: int, rest: list[str]) -> None:
        """Begin a command with arguments; in braces if it is an argument itself."""
        if missing:
            self.output.append("{")
            self._waiting.append(("", 0))  # the brace that _finish closes
        self.output.append(_NAMES.get(token, token))
        self._waiting.append((token, _ARGUMENTS[token]))
        if token == "\\sqrt":
            self._degree(rest)
            _brackets_to_braces(rest)

    def _degree(self, rest: list[str]) -> None:
        """Copy the `[3]` of a root."""
        spaces = len(rest) - next((at for at in range(len(rest) - 1, -1, -1) if not rest[at].isspace()), -1) - 1
        if rest[-1 - spaces : len(rest) - spaces] != ["["]:
            return
        del rest[len(rest) - spaces :]
        while rest:
            self.output.append(rest.pop())
            if self.output[-1] == "]":
                return

    def _argument(self, command: str, token: str, rest: list[str]) -> None:
        if token in ("-", "+") and command == "^" and rest and rest[-1].isalnum():
            token += rest.pop()
        if token[0].isdigit() and len(token) > 1 and command not in ("^", "_"):
            rest.append(token[1:])
            token = token[0]
        self.output.append(f"{{{token}}}")
        self._finish()

    def _close(self) -> None:
        """Close a brace: commands that still wait inside it have no more arguments."""
        while self._waiting and self._waiting[-1][0] not in ("{", ""):
            self._waiting.pop()
        self.output.append("}")
        if self._waiting:
            self._waiting.pop()
            self._finish()

    def _finish(self) -> None:
        """Count an argument of the innermost command; after its last, the command is an argument of the one around it."""
        while self._waiting and self._waiting[-1][1]:
            command, missing = self._waiting.pop()
            if missing > 1:
                self._waiting.append((command, missing - 1))
                return
            if not self._waiting or self._waiting[-1][0] != "":
                return
            self._waiting.pop()
            self.output.append("}")


def _brackets_to_braces(rest: list[str]) -> None:
    """`\\sqrt(2)` is the root of 2, and not of a bracket."""
    while rest and rest[-1].isspace():
        rest.pop()
    if rest[-1:] != ["("]:
        return
    depth = 0
    for at in range(len(rest) - 1, -1, -1):
        depth += (rest[at] == "(") - (rest[at] == ")")
        if depth == 0:
            rest[-1], rest[at] = "{", "}"
            return


# ---- spellings of commands and signs ----

_COMMANDS = {
    "neq": "\\ne",
    "leq": "\\le",
    "geq": "\\ge",
    "leqslant": "\\le",
    "geqslant": "\\ge",
    "lt": "<",
    "gt": ">",
    "textdegree": "\\degree",
    "varnothing": "\\emptyset",
}
_COMMAND = re.compile(rf"\\({'|'.join(_COMMANDS)})(?![A-Za-z])")
_SIGNS = {"<=": "\\le ", ">=": "\\ge ", "!=": "\\ne ", "==": "=", "<>": "\\ne ", "**": "^", "+/-": "\\pm "}
_TWO_SIGNS = re.compile(r"\+/-|<=|>=|!=|==|<>|(?<=[A-Za-z0-9)}])\*\*(?=[-A-Za-z0-9({\\])")
_IN_PLAIN_TEXT = {"infinity": "\\infty", "oo": "\\infty"}
_NAME = re.compile(r"(?<![A-Za-z\\])(sqrt|pi|theta|sin|cos|tan|sec|csc|cot|ln|log|exp|infinity|oo)(?![A-Za-z])")
_ROOT = re.compile(rf"(?<![A-Za-z\\])sqrt\s*+({ROOTED})")
_OVER = re.compile(r"\{?([^{}\\]*+)\\over(?![A-Za-z])([^{}]*+)\}?")
_UPRIGHT = re.compile(r"\\(?:mathrm|text|mathit) *+\{ *+([ei]) *+\}")  # the constants
_OF_AN_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_DEGREES = re.compile(r"([0-9]++(?:\.[0-9]++)?) ?\^ ?(?:\\circ(?![A-Za-z])|\{ ?\\circ ?\})")
_EMPTY_ROW = re.compile(r"\\\\ *(?=\\end *\{)")  # of a matrix, at its end
_BLACKBOARD = re.compile(r"\\mathbb *+([A-Z])(?![A-Za-z])")
_DIGITS_AS_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf) *+\{ *+([0-9.]*+|\\?\$) *+\}")


def usual(latex: str) -> str:
    """Return a text in the spelling that the grammar knows, in linear time."""
    if latex.isdecimal():
        return latex
    latex = _TWO_SIGNS.sub(lambda signs: _SIGNS[signs.group()], latex)
    if "\\" in latex:
        latex = _COMMAND.sub(lambda command: _COMMANDS[command.group(1)], latex)
        latex = _BLACKBOARD.sub(r"\\mathbb{\1}", _UPRIGHT.sub(r" \1 ", _EMPTY_ROW.sub("", latex)))
        latex = _DIGITS_AS_TEXT.sub(lambda text: " \\$ " if "$" in text.group() else f" {text.group(1)} ", latex)
        if "\\circ" in latex and _OF_AN_ANGLE.search(latex):
            latex = _DEGREES.sub(r"\\frac{\1\\pi}{180}", latex)
        over = _OVER.fullmatch(latex) if "\\over" in latex else None
        latex = f"\\frac{{{over.group(1)}}}{{{over.group(2)}}}" if over else latex
    latex = _ROOT.sub(r"\\sqrt{\1}", latex) if "sqrt" in latex else latex
    return _NAME.sub(lambda name: _IN_PLAIN_TEXT.get(name.group(), f"\\{name.group()} "), latex)
