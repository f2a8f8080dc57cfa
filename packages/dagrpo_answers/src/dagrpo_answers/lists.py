r"""Lists of values, and relations as the set that they state.

Brackets around them, and signs and words between them. `x < 1 \text{ or } x \ge 3` is `(-\infty,1)\cup[3,\infty)`, `x > 1, x < 3` is
`1<x<3`, and `|x| < 2` is `-2<x<2`.
"""

import re
from collections.abc import Iterator, Sequence

from dagrpo_answers.names import is_name
from dagrpo_answers.numbers import NUMERAL
from dagrpo_answers.rational import rational

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


_ORDER = re.compile(r"(<|>|\\(?:le|ge)(?![A-Za-z]))")
_TURNED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_BELOW = ("<", "\\le")
_OF_A_NAME = re.compile(r"(\|?)([^|]+?)\1(<|>|\\(?:le|ge|ne)(?![A-Za-z]))([^<>|\\=]+)")
_FROM, _TO = re.compile(r"([(\[])(.+),\\infty\)"), re.compile(r"\(-\\infty,(.+)([)\]])")


def union(text: str) -> str | None:
    """Return the set of several relations about one name with `or` between them; None for any other text."""
    intervals = [_interval(part) for part in split(text, ALTERNATIVES)]
    if len(intervals) < 2 or None in intervals or len({interval[0] for interval in intervals if interval}) > 1:
        return None
    return "\\cup ".join(interval[1] for interval in intervals if interval)


def between(relations: Sequence[str]) -> str | None:
    """Return the relation that a lower and a higher bound of one name make together; None for any other relations."""
    intervals = [interval for relation in relations if (interval := _interval(relation))]
    if len(intervals) != 2 or len(relations) != 2 or intervals[0][0] != intervals[1][0]:
        return None
    (name, first), (_, second) = sorted(intervals, key=lambda interval: _TO.fullmatch(interval[1]) is None)
    below, above = _TO.fullmatch(first), _FROM.fullmatch(second)
    if above is None or below is None or not _is_less(above.group(2), below.group(1)):
        return None
    from_low, to_high = ("\\le " if bracket in "[]" else "<" for bracket in (above.group(1), below.group(2)))
    return f"{above.group(2)}{from_low}{name}{to_high}{below.group(1)}"


def of_one_name(relation: str) -> str | None:
    r"""Return what `|x| < 2`, `|x| > 2` and `x \ne 2` state, without bars and `\ne`; None for any other text."""
    found = _OF_A_NAME.fullmatch(relation.replace(" ", ""))
    if found is None or not is_name(found.group(2)):
        return None
    bars, name, sign, limit = found.groups()
    if sign == "\\ne":
        return None if bars or not _is_number(limit) else f"(-\\infty,{limit})\\cup ({limit},\\infty)"
    if not bars or not _is_less("0", limit):
        return None
    if sign in _BELOW:
        return f"-{limit}{sign} {name}{sign} {limit}"
    return f"{_written('', '', _TURNED[sign], f'-{limit}')}\\cup {_written(limit, _TURNED[sign], '', '')}"


def _is_number(text: str) -> bool:
    try:
        return rational(text) is not None
    except OverflowError:
        return False


def _is_less(low: str, high: str) -> bool:
    """Return True if two numbers are in order; False for formulas and for numbers that are too large."""
    try:
        first, second = rational(low), rational(high)
    except OverflowError:
        return False
    return first is not None and second is not None and first < second


def _interval(relation: str) -> tuple[str, str] | None:
    """Return the name that a relation is about, and its interval."""
    sides = [side.strip() for side in _ORDER.split(relation)]
    if len(sides) == 3 and "" not in sides:
        left, sign, right = sides if is_name(sides[0]) else (sides[2], _TURNED[sides[1]], sides[0])
        if is_name(left) and not is_name(right):
            return left, _written("", "", sign, right) if sign in _BELOW else _written(right, _TURNED[sign], "", "")
    if len(sides) == 5 and "" not in sides and is_name(sides[2]):
        low, first, name, second, high = sides
        if first not in _BELOW:
            low, first, second, high = high, _TURNED[second], _TURNED[first], low
        if first in _BELOW and second in _BELOW:
            return name, _written(low, first, second, high)
    return None


def _written(low: str, first: str, second: str, high: str) -> str:
    opening = f"{'[' if first == _BELOW[1] else '('}{low}" if low else "(-\\infty"
    closing = f"{high}{']' if second == _BELOW[1] else ')'}" if high else "\\infty)"
    return f"{opening},{closing}"
