r"""The last number of a text, as in `7 1/2` or `2^10`.

forms.py and gsm8k.py parse it. Nothing is returned where the number ends a longer expression that spaces divide
(`16 - 3`): any part of it would be a wrong reading.
"""

import re

from dagrpo_answers.dressing import undressed, without_tags_at_the_end
from dagrpo_answers.numbers import NUMERIC, plain_number
from dagrpo_answers.spelled import LETTERS, changes_the_next
from dagrpo_answers.words import changes_a_number

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
_ASIAN = re.compile(f"[{LETTERS}]")
_LIGHT_WORDS = (  # that may stand between an `or` or a `not` and its number
    "a about also approximately around as at be been can could equal equals even exactly have is it just may might most perhaps probably "
    "roughly simply the to was were would"
)
_DENYING_WORDS = (
    "or nor not never neither cannot can't isn't aren't wasn't isnt ain't don't doesn't didn't won't shouldn't couldn't wouldn't vs vs. "
    "versus than maybe perhaps possibly unlikely unless except"
)
_LIGHT, _DENYING = frozenset(_LIGHT_WORDS.split()), frozenset(_DENYING_WORDS.split())
_OR_GLUED = re.compile(r"[\"'`*_$(]*+(?:or|not)[\"'`*_$(\\]++[0-9]", re.IGNORECASE)
_RESULT = re.compile(r"[0-9)]=")
_INSTEAD = ("instead", "of")
_DID_NOT = re.compile(r"\b(?:(?:do|does|did) not|(?:don|doesn|didn)['\u2019]t) [a-z]+\Z")  # sell
_TAKEN_BACK = re.compile(
    r"[^.;:!?,\n]{0,20}?\b(?:(?:is|was|are|were|be)\s++(?:\w++\s++)?(?:wrong|incorrect|false|mistaken|invalid|untrue|impossible"
    r"|not\s++(?:the|right|correct|it|true|possible)\b)|(?:isn't|wasn't)\s++(?:the|right|correct|it|true)\b)",
    re.IGNORECASE,
)
_CLAUSE_ENDS = (".", ",", ";", ":", "!", "?")
_OPERAND_END = re.compile(r"[^\W_]|[)\]}%]")
_NUMBER_END = re.compile(r"[0-9)\]}%]")
_GROUP = re.compile(r"[0-9]{3}")
_FRACTION = re.compile(r"[0-9]++/[0-9]++|[0-9]*+[\u00bd\u00bc\u00be\u2150-\u215e]|\\[dt]?frac.*")
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
_MOST_LAYERS = 6
_CALCULATION = re.compile(r"<<[^<>\n]*+>>")  # <<36*2=72>>, as the data set marks them
_NUMBER_BEFORE = re.compile(r"[0-9.,]++ ?\Z")
_NUMBER_AFTER = re.compile(r"[0-9.,]++")
_LONGEST_BEFORE = 40  # characters


def last_form(text: str, *, before_a_unit: bool = False) -> str | None:
    """Return the last number of a text as written, in linear time; None without one, or at the end of an expression."""
    last = last_digit(text)
    if last < 0:
        return None
    if text.rfind("<<") > (start := text.rfind("\n", 0, last)):
        text = text[: start + 1] + without_calculations(text[start + 1 :])
        last = last_digit(text)
    glued, after = _NEXT.match(text, last + 1).groups()  # type: ignore[union-attr]  # it matches anywhere
    line = text[max(text.rfind("\n", 0, last), text.rfind("\r", 0, last)) + 1 : last + 1]
    *before, token = line.rsplit(None, _MOST_TOKENS)
    token += glued
    before = [] if token.startswith("=") else before
    bare = _bare(token)
    if before and not before_a_unit and not bare[:1].isdecimal() and (unit := _RAISED_UNIT.fullmatch(bare)):
        form = last_form(text[: text.rindex(token, 0, last + len(glued) + 1)], before_a_unit=True)
        return form and f"{form} {unit.group()}"
    doubtful = _ends_a_list(line, token) or _STRUCK_OUT.search(token) or _DASH.match(token) or is_denied(before, token)
    form = None if doubtful else _joined(before, bare)
    if form is None:
        return None
    if _TAKEN_BACK.match(text, last + 1 + len(glued)):
        return None
    if goes_on := _GOES_ON.match(text, last + 1 + len(glued)):
        return f"{form} {goes_on.group()}"
    if after and (changes_a_number(after) or after in _OPERATORS - {"-", "\u2013", "x", "X", ":", "="}):
        return f"{form} {after}"
    return form


def is_denied(before: list[str], token: str) -> bool:
    """Return True if the words before a number deny it, or name it as one of several: `not 24`, `41 or maybe 42`, `between 41 and 42`."""
    words = [word.strip("\"'`*_$([{").lower() for word in before]
    while words and words[-1].isdecimal():  # of 7 1/2, of 1 234
        words.pop()
    if words[-1:] == ["and"] and words[-3:-2] == ["between"]:
        return True
    if words[-1:] == ["or"] and _RESULT.search(token) and not any(map(str.isdecimal, "".join(words[-2:-1]))):
        return False  # half as many, or 60/2=30
    if tuple(words[-2:]) == _INSTEAD or _OR_GLUED.match(token) or _DID_NOT.search(" ".join(words[-3:])):
        return True
    for word in reversed(words):
        if word in _DENYING or word.replace("\u2019", "'") in _DENYING:
            return True
        if word not in _LIGHT or word.endswith(_CLAUSE_ENDS):
            return False
    return False


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
    last = last_digit(token)
    letters = next((at for at in range(last, start - 1, -1) if _ASIAN.match(token[at])), -1)
    if letters < 0 or changes_the_next(token[: letters + 1]):
        return start
    return letters + 2 if token[letters + 1] in ":\uff1a" else letters + 1


def without_calculations(line: str) -> str:
    """Return a line without the calculations whose result stands after or before them, in linear time. Others stay."""
    if "<<" not in line:
        return line

    def shown(calculation: re.Match[str]) -> str:
        start, end = calculation.span()
        after = _NUMBER_AFTER.match(line, end)
        beside = after or _NUMBER_BEFORE.search(line, max(0, start - _LONGEST_BEFORE), start)
        result = plain_number(calculation.group()[2:-2].rpartition("=")[2])
        same = beside is not None and plain_number(beside.group().strip(" ").rstrip(".,")) == result
        return "" if same and result is not None else calculation.group()

    return _CALCULATION.sub(shown, line)
