"""Lists of values: brackets around them, commas and semicolons between."""

import re
from collections.abc import Sequence

from dagrpo.rewards.numerals import NUMERAL


def bracketed(text: str) -> tuple[str, str, str]:
    """Return a text as its opening bracket, what is inside, and its closing one; "" for brackets that are not around all of it."""
    for opening, closings in (("\\{", ("\\}",)), ("(", (")", "]")), ("[", ("]", ")"))):
        for closing in closings:
            if text.startswith(opening) and text.endswith(closing):
                inside = text[len(opening) : -len(closing)]
                return (opening, inside, closing) if _depths(inside) else ("", text, "")
    return "", text, ""


def _depths(text: str) -> bool:
    """Return whether brackets close only what was opened inside the text."""
    depth = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        if depth < 0:
            return False
    return depth == 0


def parts(text: str, *, grouped: bool) -> list[str] | None:
    """Split a text at its outermost commas and semicolons, except, if `grouped`, commas of thousands. None: a part is empty."""
    parts, depth, start = [], 0, 0
    thousands = {at for numeral in NUMERAL.finditer(text) if grouped for at in _commas(numeral)}
    for at, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if character in ",;" and depth == 0 and at not in thousands:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return None if "" in parts or "\\begin" in text else parts


def _commas(numeral: re.Match[str]) -> Sequence[int]:
    text = numeral.group() if numeral.group("grouped") else ""
    return [numeral.start() + at for at, character in enumerate(text) if character == ","]
