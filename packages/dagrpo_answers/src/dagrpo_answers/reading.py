r"""Find an answer: a box, `Answer:`, tags, the last formula.

Every function reads from the end, takes linear time on any text, looks at all of it, and returns None if nothing is
found. forms.py parses the answer.
"""

import re

from dagrpo_answers.dressing import BRACE, FORMULAS, balanced, closing_brace, closing_braces, without_dollars
from dagrpo_answers.numbers import plain_number, to_ascii
from dagrpo_answers.prose import last_digit, last_form
from dagrpo_answers.words import changes_a_number

_BOX = re.compile(r"\\(?:boxed|fbox)\s*+(?:\{|(?=[-+$\\]?[0-9.]|\(|\\(?:[dt]?frac|sqrt|text|mathbf|mathrm)))")
_UNBRACED = re.compile(r"\\?\$?[-+]?(?:[0-9]++(?:[.,/][0-9]++)*+|\.[0-9]++)|\([^()\n$]*+\)|[^\n$]*+")
_BOX_COMMAND = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_BOX_BEFORE = re.compile(r"\\(?:boxed|fbox)\s*+\{\Z")
_BESIDE = r"(?:[\s$~]|\\[()\[\],; ]|\\q?quad(?![A-Za-z]))*+"
_JOINER = rf"(?:\\text\s*+\{{\s*+(?:and|or)\s*+\}}|\b(?:and|or)\b){_BESIDE}"
_BESIDE_A_BOX = re.compile(  # the brace that ends a box, and what joins the next one to it
    rf"\}}{_BESIDE}(?:[,;\u3001\uff0c\u6216\u548c]{_BESIDE}(?:{_JOINER})?|{_JOINER})\Z"
)
_LONGEST_JOINER = 40  # characters
_MOST_BOXES = 10
_SENTENCE = re.compile(
    r"(?:[^\W\d]|[\s$.,:;*'\"`()\[\]{}%=]|\\(?:text|textbf|mathbf|mathrm|left|right)(?![A-Za-z])|\\[()\[\]$%])*+"
)
_ANSWER = re.compile(r"answer[\s*_]*+[:\uff1a][\s*_}]*+", re.IGNORECASE)
_ENDS = "*_ \t\r\n"
_OPEN, _CLOSE = "<answer>", "</answer>"


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` or `\fbox{...}` that is not empty, its braces matched; or `34` in `\boxed 34`.

    With nothing but a comma, an `and` or an `or` between them, several boxes are one answer: `1, 2`, `1 or 2`. None without a box, and if
    the last one never ends.
    """
    found = _last_box(text, len(text))
    if found is None:
        return None
    start, contents, sign = found[0], [found[1]], ", "
    while len(contents) < _MOST_BOXES and (
        beside := _BESIDE_A_BOX.search(text, max(0, start - _LONGEST_JOINER), start)
    ):
        before = _last_box(text, beside.start() + 1)
        if before is None or before[2] != beside.start():
            break
        start = before[0]
        sign = " or " if "or" in beside.group() or "\u6216" in beside.group() else sign
        contents.append(before[1])
    different = list(dict.fromkeys(reversed(contents)))
    return to_ascii(sign.join(different))


def _last_box(text: str, limit: int) -> tuple[int, str, int] | None:
    """Return the start of the last box before `limit`, its content, and the index of its last brace; None if it never ends."""
    at = limit
    while (at := text.rfind("box", 0, at)) >= 0:
        box = _BOX.match(text, max(0, at - 1 - (text[at - 1] == "f")))
        if box and not box.group().endswith("{"):
            return box.start(), _unbraced(text, box.end()), -1
        end = closing_brace(text, box.end()) if box else None
        if box and end is None:
            return None
        if box and end is not None and (content := text[box.end() : end].strip()):
            around = _box_around(text, box.start(), end) if "box" in text[:at] else None
            return box.start(), content if around is None else _without_boxes(around), end
    return None


def _without_boxes(content: str) -> str:
    r"""Return a box's content without the commands of the boxes in it, and without braces around all of it: 34 of `\boxed{34}`."""
    bare = _BOX_COMMAND.sub("", content).strip()
    return bare[1:-1].strip() if bare.startswith("{") and closing_brace(bare, 1) == len(bare) - 1 else bare


def _box_around(text: str, start: int, end: int) -> str | None:
    """Return the content of the outermost box around a box from `start` to `end`; None without one that ends."""
    opened: list[int] = []
    for brace in BRACE.finditer(text, 0, start):
        if brace.group() == "{":
            opened.append(brace.end())
        elif brace.group() == "}" and opened:
            opened.pop()
    closings = closing_braces(text, end + 1)
    enclosing = list(zip(reversed(opened), closings, strict=False))
    for inside, closing in reversed(enclosing):
        if _BOX_BEFORE.search(text, max(0, inside - 20), inside):
            return text[inside:closing].strip()
    return None


def box_alone(line: str) -> str | None:
    r"""Return the box's content if nothing beside it changes the answer ("It is \boxed{34}."), else the line ("\boxed{34} or 35")."""
    content = last_boxed(line) if "box" in line else None
    if content is None:
        return line
    box = _BOX_COMMAND.search(line)
    start, brace = (box.start(), line.find("{", box.end())) if box else (0, -1)
    end = closing_brace(line, brace + 1) if brace >= 0 else None
    beside = line if end is None else f"{line[:start]} {line[end + 1 :]}"
    return content if _SENTENCE.fullmatch(beside) and not changes_a_number(beside) else _BOX_COMMAND.sub("", line)


def _unbraced(text: str, start: int) -> str:
    """Return a number after a box without braces, or the rest of its formula."""
    content = _UNBRACED.match(text, start)
    assert content is not None  # it may be empty
    return content.group().partition("\\)")[0].partition("\\]")[0].strip().removesuffix(".")


def answer_line(text: str) -> str | None:
    """Return the text after the last `Answer:` on its line (or on the next, if that line ends there), without emphasis.

    Any case, and emphasis around the word: `**Answer:** 34`. A full stop that ends the line is not part of the answer.
    """
    lowered = text.lower()
    if len(lowered) != len(text):  # one letter (a dotted capital I) grows in lower case
        lowered = text.replace("\u0130", "I").lower()
    end = len(text)
    while (start := lowered.rfind("answer", 0, end)) >= 0:
        mark = _ANSWER.match(text, start)
        if mark:
            line = text[mark.end() : _end_of_line(text, mark.end())]
            if line := to_ascii(line).rstrip(_ENDS):
                return _without_stop(line)
        end = start
    return None


def _without_stop(line: str) -> str | None:
    """Return a line without the full stop or the brace (of an emphasis around all of it) that only ends it."""
    bare = line.removesuffix(".").rstrip(_ENDS)
    return (bare if balanced(bare) else bare.removesuffix("}")) or None


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def answer_tag(text: str) -> str | None:
    """Return the content of the last `<answer>...</answer>`, the innermost where they nest; None if it is empty."""
    start = text.rfind(_OPEN, 0, max(0, text.rfind(_CLOSE)))
    if start < 0:
        return None
    end = text.find(_CLOSE, start)
    return to_ascii(text[start + len(_OPEN) : end]).strip() or None


def only_answer_tag(text: str) -> str | None:
    """Return answer_tag if the text has one such pair and ends with it."""
    alone = text.count(_OPEN) == 1 and text.count(_CLOSE) == 1 and text.rstrip().endswith(_CLOSE)
    return answer_tag(text) if alone else None


def last_formula(text: str) -> str | None:
    r"""Return the last formula (`$...$`, `\(...\)`, `\[...\]`) or number of a text, whichever ends later."""
    end, formula = max(_last_pair(text, opening, closing) for opening, closing in FORMULAS)
    return last_form(text) if last_digit(text) >= end else to_ascii(formula)


def _last_pair(text: str, opening: str, closing: str) -> tuple[int, str]:
    """Return the end of the last pair and its content; (-1, "") if that is empty."""
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end > 0 else -1
    formula = text[start + len(opening) : end].strip() if start >= 0 else ""
    return (end, formula) if formula else (-1, "")


def tidied(answer: str) -> str:
    """Return an answer without the dollars around it; a plain number as its normalised text."""
    if answer.isascii() and answer.isdecimal() and answer[0] != "0":
        return answer  # as nearly all are
    bare = without_dollars(answer)
    number = plain_number(bare)
    return bare if number is None else number
