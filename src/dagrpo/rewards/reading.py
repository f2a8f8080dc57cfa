"""Finding the place in a text where an answer stands: a box, a line `Answer:`, a pair of tags, the last formula.

Every function reads from the end, takes linear time on any text, looks at all of it, and answers None when there is no
such place. Not here: what the answer means (numbers.py, minerva.py, hendrycks.py).
"""

import re

from dagrpo.rewards.numbers import DIGITS, ends_in_a_sign, last_number, plain_number, to_ascii

_BOX = re.compile(r"\\(?:boxed|fbox)\s*+\{")
_DEPTH = {"{": 1, "}": -1}
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # \{ and \} are text, not structure
_ANSWER = re.compile(r"answer[\s*_]*+[:\uff1a][\s*_}]*+", re.IGNORECASE)
_ENDS = "*_ \t\r\n"
_OPEN, _CLOSE = "<answer>", "</answer>"
_PAIRS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_FRACTION = re.compile(r"[0-9]++/[0-9]++")


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}` or `\fbox{...}` with something in it, its braces matched.

    None when there is none, and when the last one never ends.
    """
    at = len(text)
    while (at := text.rfind("box", 0, at)) >= 0:
        box = _BOX.match(text, max(0, at - 1 - (text[at - 1] == "f")))
        end = _closing_brace(text, box.end()) if box else None
        if box and end is None:
            return None
        if box and (content := text[box.end() : end].strip()):
            return to_ascii(content)
    return None


def _closing_brace(text: str, start: int) -> int | None:
    """Where the brace closes that was opened just before `start`."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += _DEPTH.get(brace.group(), 0)
        if depth == 0:
            return brace.start()
    return None


def balanced(text: str) -> bool:
    """Whether every brace that closes was opened, and every one that was opened closes."""
    depth = 0
    for brace in _BRACE.finditer(text):
        depth += _DEPTH.get(brace.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def answer_line(text: str) -> str | None:
    """What follows the last `Answer:` on its line (or on the next, where that line ends there), without emphasis.

    Any case, and emphasis around the word: `**Answer:** 34`. A full stop that ends the line is no part of the answer.
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
    """A line without the full stop or the brace (of an emphasis around all of it) that only ends it."""
    bare = line.removesuffix(".").rstrip(_ENDS)
    return (bare if balanced(bare) else bare.removesuffix("}")) or None


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def answer_tag(text: str) -> str | None:
    """What stands in the last `<answer>...</answer>`; None when it is empty."""
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, end) if end >= 0 else -1
    return (to_ascii(text[start + len(_OPEN) : end]).strip() or None) if start >= 0 else None


def only_answer_tag(text: str) -> str | None:
    """As answer_tag, where the text has one such pair and ends with it."""
    alone = text.count(_OPEN) == 1 and text.count(_CLOSE) == 1 and text.rstrip().endswith(_CLOSE)
    return answer_tag(text) if alone else None


def last_formula(text: str) -> str | None:
    r"""The last formula (`$...$`, `\(...\)`, `\[...\]`) or number of a text, whichever ends later."""
    end, formula = max(_last_pair(text, opening, closing) for opening, closing in _PAIRS)
    last_digit = max(text.rfind(digit) for digit in DIGITS)
    if last_digit >= end:
        return _last_fraction(text[: last_digit + 1]) or last_number(text)
    return to_ascii(formula)


def _last_pair(text: str, opening: str, closing: str) -> tuple[int, str]:
    """Where the last pair ends, and what stands in it; (-1, "") where that is nothing."""
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end > 0 else -1
    formula = text[start + len(opening) : end].strip() if start >= 0 else ""
    return (end, formula) if formula else (-1, "")


def _last_fraction(text: str) -> str | None:
    """A fraction of two whole numbers (`-3/4`) at the end of a text."""
    before = text.rstrip(DIGITS + "/")
    fraction = to_ascii(text[len(before) :])
    sign = "-" if ends_in_a_sign(before) else ""
    return sign + fraction if _FRACTION.fullmatch(fraction) else None


def undressed(answer: str) -> str:
    r"""An answer without the marks around a formula: `$34$`, `\(34\)`, `$$34$$`."""
    for opening, closing in _PAIRS:
        if len(answer) > len(opening) + len(closing) and answer.startswith(opening) and answer.endswith(closing):
            return answer[len(opening) : -len(closing)].strip()
    return answer


def tidied(answer: str) -> str:
    """An answer undressed; a plain number as its normalised text."""
    bare = undressed(answer)
    number = plain_number(bare)
    return bare if number is None else number
