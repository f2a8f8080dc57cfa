"""Lists of values: brackets around them, and signs and words between them."""

import re
from collections.abc import Iterator

from dagrpo_answers.numbers import NUMERAL

_JOINER = (  # `, and`, `\text{ or }`, `\lor`
    r"\s*+(?:,\s*+)?(?:\\text(?:bf|rm|it)?\s*+\{{\s*+(?:{words})\s*+,?\s*+\}}|(?<![A-Za-z\\])(?:{words})(?![A-Za-z]){signs})\s*+"
)
_OR = _JOINER.format(words="or", signs=r"|\\(?:lor|vee)(?![A-Za-z])")
_OR_AND = _JOINER.format(words="or|and", signs=r"|\\(?:lor|vee)(?![A-Za-z])")
_BRACKETS = r"|[({\[]|[)}\]]"
ALTERNATIVES, WORDS, _SEPARATORS, _EQUALS = (
    re.compile(f"(?P<sign>{sign}){_BRACKETS}") for sign in (_OR, _OR_AND, rf"{_OR_AND}|[,;]", r"(?<![<>!=:])=(?!=)")
)


_PLUS_MINUS, _MINUS_PLUS = (re.compile(rf"\\{sign}(?![A-Za-z])") for sign in ("pm", "mp"))
_MOST_SIGNS = 3
_UNARY_PLUS = re.compile(r"(?:\A|(?<=[=({\[,;^*/])|(?<=[=({\[,;^*/] ))\+ ?")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in)(?![A-Za-z])")


def bracketed(text: str) -> tuple[str, str, str]:
    """Return a text as its opening bracket, what is inside, and its closing one; "" for brackets that are not around all of it."""
    for opening, closings in (("\\{", ("\\}",)), ("(", (")", "]")), ("[", ("]", ")"))):
        for closing in closings:
            if text.startswith(opening) and text.endswith(closing):
                inside = text[len(opening) : -len(closing)]
                return (opening, inside, closing) if _closes_what_it_opens(inside) else ("", text, "")
    return "", text, ""


def _closes_what_it_opens(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        if depth < 0:
            return False
    return depth == 0


def parts(text: str, *, grouped: bool) -> list[str] | None:
    """Split a text at its outermost commas, semicolons, `or` and `and`, except, if `grouped`, commas of thousands.

    None if a part is empty.
    """
    if "\\begin" in text:
        return None
    thousands = set(_commas(text)) if grouped and "," in text else set()
    values = split(text, _SEPARATORS, thousands)
    return None if "" in values else values


def of_both_signs(text: str) -> list[str]:
    r"""Return the values of a text with `\pm`, the text itself without: each sign both ways, with a `\mp` the opposite of one `\pm`."""
    count = len(_PLUS_MINUS.findall(text)) if "\\pm" in text and _RELATION.search(text) is None else 0
    if not 0 < count <= (1 if "\\mp" in text else _MOST_SIGNS):
        return [text]
    texts = [text]
    for _ in range(count):
        texts = [
            _MINUS_PLUS.sub(other, _PLUS_MINUS.sub(sign, each, count=1))
            for each in texts
            for sign, other in ("+-", "-+")
        ]
    return [_UNARY_PLUS.sub("", each) for each in texts]


def sides(text: str) -> list[str]:
    """Split an equation at its outermost signs `=`; the text itself if it has no such sign."""
    return split(text, _EQUALS) if "=" in text else [text]


def split(text: str, signs: re.Pattern[str], without: set[int] | None = None) -> list[str]:
    """Split a text at the matches of `signs` outside of brackets, in linear time; not at the indices `without`."""
    values, depth, start = [], 0, 0
    for sign in signs.finditer(text):
        if not sign.group("sign"):
            depth += 1 if sign.group() in "({[" else -1
        elif depth == 0 and sign.start() not in (without or ()):
            values.append(text[start : sign.start()].strip())
            start = sign.end()
    return [*values, text[start:].strip()]


def _commas(text: str) -> Iterator[int]:
    """Yield the indices of the commas of thousands."""
    for numeral in NUMERAL.finditer(text):
        if numeral.group("grouped"):
            yield from (at for at in range(numeral.start(), numeral.end()) if text[at] == ",")
