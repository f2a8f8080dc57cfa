r"""Decoration around an answer: `$...$`, emphasis, `\text{...}`, a full stop, `</s>`.

forms.py parses the answer, reading.py finds it in a text.
"""

import re
from collections.abc import Iterator

FORMULAS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_END_TOKEN = re.compile(r"(?:</?s>|<\|[a-z_]{1,30}\|>|<eos>|<end_of_turn>|<pad>)\Z")
_LONGEST_END_TOKEN = 40
_SIZES = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|normalsize|large|Large|huge|rm|bf)(?![A-Za-z])"
)
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|underline|mbox|mathrm|mathbf|mathit|mathsf|mathtt|boldsymbol|bm|boxed|fbox|emph|operatorname)\s*+\{|\{"
)
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # \{ and \} are text, not structure
_DEPTH = {"{": 1, "}": -1}
_EMPHASIS = '*_`" \t\r\n'
_QUOTE = "'"  # a prime, unless one opens as well
_MOST_LAYERS = 8


def closing_brace(text: str, start: int) -> int | None:
    """Return the index of the brace that closes the one just before `start`, None if it stays open."""
    return next(closing_braces(text, start), None)


def closing_braces(text: str, start: int) -> Iterator[int]:
    """Yield the indices of the braces that close those open at `start`, the innermost first."""
    depth = 0
    for brace in BRACE.finditer(text, start):
        depth += _DEPTH.get(brace.group(), 0)
        if depth < 0:
            yield brace.start()
            depth = 0


def balanced(text: str) -> bool:
    """Return True if braces are balanced."""
    depth = 0
    for brace in BRACE.finditer(text):
        depth += _DEPTH.get(brace.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def undressed(answer: str) -> str:
    """Return an answer without the decoration around all of it, in linear time."""
    text = _SIZES.sub("", answer) if "\\" in answer else answer
    for _ in range(_MOST_LAYERS):
        bare = _without_a_layer(text)
        if bare == text:
            break
        text = bare
    return text


def without_end_tokens(text: str) -> str:
    """Return a text without the tokens by which a tokenizer marks its end."""
    return without_tags_at_the_end(text, _END_TOKEN)


def without_tags_at_the_end(text: str, tag: re.Pattern[str]) -> str:
    """Return a text without the matches of `tag` at its end and the spaces between them, in linear time."""
    end = len(text)
    while text.endswith(">", 0, end):
        window = text[max(0, end - _LONGEST_END_TOKEN) : end]
        match = tag.search(window)
        if match is None:
            break
        end -= len(window) - match.start()
        while end and text[end - 1].isspace():
            end -= 1
    return text[:end]


def _without_a_layer(text: str) -> str:
    text = without_end_tokens(text).strip(_EMPHASIS)
    if text.startswith(_QUOTE):
        text = text.strip(_QUOTE)
    text = text.rstrip("\\ ")  # a space or a line's end of which the rest was cut
    if text.endswith((".", ",", ";")) and not text.endswith(("..", "\\,", "\\;")):
        text = text[:-1].rstrip(_EMPHASIS)
    bare = without_dollars(text)
    if bare != text:
        return bare
    wrapper = _WRAPPER.match(text)
    if wrapper and text.endswith("}") and closing_brace(text, wrapper.end()) == len(text) - 1:
        return text[wrapper.end() : -1]
    return text


def without_dollars(answer: str) -> str:
    r"""Return an answer without the marks of a formula around all of it: `$34$`, `\(34\)`, `$$34$$`."""
    if answer[:1] not in ("$", "\\"):
        return answer
    for opening, closing in FORMULAS:
        if answer.startswith(opening) and answer.endswith(closing) and len(answer) > len(opening) + len(closing):
            inside = answer[len(opening) : -len(closing)]
            pairs = closing in inside.replace("\\$", "") or inside.endswith("\\")
            return answer if pairs else inside.strip()
    return answer
