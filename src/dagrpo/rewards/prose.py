r"""The last number of a text, as in `7 1/2` or `2^10`.

forms.py and gsm8k.py parse it. Nothing is returned where the number ends a longer expression that spaces divide
(`16 - 3`): any part of it would be a wrong reading.
"""

import re

from dagrpo.rewards.dressing import undressed, without_tags_at_the_end
from dagrpo.rewards.symbols import NUMERIC
from dagrpo.rewards.words import changes_a_number

ASCII_DIGITS = "0123456789"
_MOST_TOKENS = 12  # before the last one that may belong to it: 1 234 567
_NEXT = re.compile(r"(\S*+)(?:[ \t\u00a0\u202f\u2009]++(\S{1,20}+))?")
_TAGS = re.compile(r"(?:<[A-Za-z/|_]{1,20}>)++")
_TAG_AT_THE_END = re.compile(r"<[A-Za-z/|_]{1,20}>\Z")
_WRAPPER = re.compile(r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm|mbox) *+\{")
_LEADING = "\"'`*_#|:\u2014\u201c\u2018"
_TRAILING = "\"'`*_|,;:!?\u2014\u201d\u2019"
_NAMED = re.compile(r"[A-Za-z][^=:<>!]*+[:=](?!=)|[^<>!=]*=(?!=)|[A-Za-z]++\.{3}")
_OPERATOR_TOKENS = (
    "+ - * / ^ ** = x X \u00d7 \u00b7 \u22c5 \u00f7 \u2212 \u2013 \\times \\cdot \\div < > \u2260 \\neq \\ne != <= >= :"
)
_OPERATORS = frozenset(_OPERATOR_TOKENS.split())
_MINUS = ("-", "\u2212")
_DASH = re.compile(r"[\"'`*_$(]*+[\u2014\u2015][$.0-9]")  # a minus or a pause: undecidable
_WORD_TOKENS = (
    "plus minus times mod choose multiplied divided negative sqrt log ln \\sqrt \\log \\ln \\minus \u221a \u2796"
)
_BEFORE_A_NUMBER = frozenset(_WORD_TOKENS.split())
_RAISED_UNIT = re.compile(r"(?:(?:sq|[kcm]?m|ft|in|yd|mi|s)(?:\^(?:[23]|\{[23]\})|[\u00b2\u00b3]))\.?")
_STRUCK_OUT = re.compile(r"<(?:del|strike)>", re.IGNORECASE)
_GOES_ON = re.compile(  # a half, 0.5, base 8
    r"\s++(?:and\s++(?:an?|one|two|three)\s++[a-z]{4,8}(?<=half)|and\s++(?:an?|one|two|three)\s++(?:thirds?|quarters?|fourths?|fifths?)"
    r"|point\s++[a-z]{3,6}|\(?(?:in\s++)?base)\b",
    re.IGNORECASE,
)
_ASIAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]++[\uff1a:]?")
_ASIAN_DENIALS = frozenset("\u4e0d\u975e\u6ca1\u672a\u7ea6\u7d04\u8d1f\u8ca0\u51cf\u6e1b\u7b2c")  # not, about, minus
_OPERAND_END = re.compile(r"[^\W_]|[)\]}%]")
_NUMBER_END = re.compile(r"[0-9)\]}%]")
_GROUP = re.compile(r"[0-9]{3}")
_FRACTION = re.compile(r"[0-9]++/[0-9]++|[0-9]*+[\u00bd\u00bc\u00be\u2150-\u215e]|\\[dt]?frac.*")
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
_MOST_LAYERS = 6


def last_form(text: str, *, before_a_unit: bool = False) -> str | None:
    """Return the last number of a text as written, in linear time; None without one, or at the end of an expression."""
    last = last_digit(text)
    if last < 0:
        return None
    glued, after = _NEXT.match(text, last + 1).groups()  # type: ignore[union-attr]  # it matches anywhere
    line = text[max(text.rfind("\n", 0, last), text.rfind("\r", 0, last)) + 1 : last + 1]
    *before, token = line.rsplit(None, _MOST_TOKENS)
    token += glued
    bare = _bare(token)
    if before and not before_a_unit and not bare[:1].isdecimal() and (unit := _RAISED_UNIT.fullmatch(bare)):
        form = last_form(text[: text.rindex(token, 0, last + len(glued) + 1)], before_a_unit=True)
        return form and f"{form} {unit.group()}"
    doubtful = _ends_a_list(line, token) or _STRUCK_OUT.search(token) or _DASH.match(token)
    form = None if doubtful else _joined(before, bare)
    if form is None:
        return None
    if goes_on := _GOES_ON.match(text, last + 1 + len(glued)):
        return f"{form} {goes_on.group()}"
    if after and (changes_a_number(after) or after in _OPERATORS - {"-", "\u2013", "x", "X", ":", "="}):
        return f"{form} {after}"
    return form


def last_digit(text: str) -> int:
    """Return the index of the last character that is part of a number: a digit of any script, or another sign; -1 without one."""
    if text.isascii():
        return max(map(text.rfind, ASCII_DIGITS))
    return next((at for at in range(len(text) - 1, -1, -1) if text[at].isdecimal() or text[at] in NUMERIC), -1)


def _ends_a_list(line: str, token: str) -> bool:
    """Return True if a bracket closes after the last number that was opened before another one: (3, 4)."""
    for opening, closing in _BRACKETS:
        if token.count(closing) > token.count(opening):
            inside = line[line.rfind(opening) + 1 :].rpartition(" ")[0]
            if any(character.isdecimal() for character in inside):
                return True
    return False


def _joined(before: list[str], form: str) -> str | None:
    """Return a form with the tokens before it that belong to it; None if it is the end of an expression."""
    if not before or not form:
        return form or None
    previous = before[-1].lstrip("$*_(")
    if previous.lower() in _BEFORE_A_NUMBER:
        return None
    if previous in _OPERATORS:
        operand = before[-2][-1:] if len(before) > 1 else ""
        if previous not in ("=", ":") and _OPERAND_END.match(operand):
            return None
        return _negative(form) if previous in _MINUS and operand else form
    if previous in ("e", "E") and len(before) > 1 and before[-2][-1:].isdecimal():  # 9.6 e 2
        return None
    if previous[-1:] in _OPERATORS - {"=", ":"} and _NUMBER_END.match(previous[-2:-1]):
        return None
    if previous.endswith("{") and not _WRAPPER.search(previous):
        return None
    if _FRACTION.fullmatch(form) and previous.isdecimal():
        return f"{previous} {form}"
    if _GROUP.match(form) and previous.isdecimal() and len(previous) <= 3:
        return _joined(before[:-1], f"{previous} {form}")
    return None if previous[-1:].isdecimal() else form


def _negative(form: str) -> str | None:
    """Return a form with a minus that a space divides from it, `x = - 5`. At the beginning of a line a minus marks an item of a list."""
    return None if form.startswith(_MINUS) else f"-{form}"


def _bare(token: str) -> str:
    """Return a word of a text without the marks that surround a number in prose."""
    for _ in range(_MOST_LAYERS):
        bare = _without_a_layer(token)
        if bare == token:
            break
        token = bare
    return token


def _without_a_layer(token: str) -> str:
    inside = without_tags_at_the_end(token[_end_of_tags(token) :], _TAG_AT_THE_END)
    bare = undressed(inside).lstrip(_LEADING).rstrip(_TRAILING)
    bare = bare.lstrip(".") if bare.startswith("..") else bare
    for opening, closing in _BRACKETS:
        opened, closed = bare.count(opening), bare.count(closing)
        if closed > opened and bare.endswith(closing):
            bare = bare[:-1]
        elif (
            opened >= closed
            and bare.startswith(opening)
            and (opened > closed or bare.endswith(closing))
            and opening != "{"
        ):
            bare = bare[1:].removesuffix(closing) if opened == closed else bare[1:]
    wrapper = _WRAPPER.match(bare)
    if wrapper and bare.count("{") > bare.count("}"):
        bare = bare[wrapper.end() :]
    name = _NAMED.match(bare)
    return bare[name.end() :] if name and name.end() < len(bare) else bare


def _end_of_tags(token: str) -> int:
    """Return the index after the tags, and the letters of a script without spaces, that stand before a word's number."""
    if ">" not in token and token.isascii():
        return 0
    close = token.rfind(">", 0, last_digit(token) + 1)
    tag = _TAGS.fullmatch(token, token.rfind("<", 0, close + 1), close + 1) if close > 0 else None
    start = tag.end() if tag and not token[tag.start() - 1 : tag.start()].isdecimal() else 0
    letters = _ASIAN.match(token, start)
    if letters and not any(map(str.isnumeric, letters.group())) and _ASIAN_DENIALS.isdisjoint(letters.group()):
        return letters.end()
    return start
