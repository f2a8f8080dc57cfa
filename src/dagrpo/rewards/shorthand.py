r"""LaTeX's shorthand with braces: `\frac 1 2` becomes `\frac{1}{2}`, `2^10` `2^{10}`.

TeX takes one token where there are no braces, and so does this, but for the digits of a power and of an index, which belong
together in what people write (`2^10`, `\log_10 100`). Nothing is parsed: text that is not LaTeX comes out unchanged.
"""

import re

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
