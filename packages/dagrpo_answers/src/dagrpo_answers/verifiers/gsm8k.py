"""The number that ends a GSM8K solution (`#### 18`), compared exactly.

Any length of text is read in linear time, all of it (verl's reward looks at the last 300 characters only), and no text
makes it fail. Answers that are not plain numbers (fractions, powers, times, ranges, exponents) are no answer, rather
than the number they begin with.
"""

import re
import unicodedata

from dagrpo_answers.dressing import without_end_tokens
from dagrpo_answers.errors import UserError
from dagrpo_answers.numbers import CURRENCIES, GROUPED, MINUS_SIGNS, normalise, plain_number, to_latex, truth_number
from dagrpo_answers.prose import last_form, without_calculations
from dagrpo_answers.spelled import changes_the_last, spelled_first, without_words
from dagrpo_answers.verifier import Extractor, Verifier
from dagrpo_answers.words import changes_a_number, unit_of

MARK = "####"

_NEXT_QUESTION = re.compile(r"^[ \t*_#]*+(?:Question|Problem|Q|Human|User)\b[ \t0-9]*+[*_]*+[:.]", re.MULTILINE)
_DECORATION = " \t\u00a0*_`'\"\\([{<:=+" + CURRENCIES  # what may stand between the mark and the number
_NUMBER = re.compile(rf"{GROUPED}(?:\.[0-9]*+)?|[0-9]++(?:\.[0-9]*+)?|\.[0-9]++")
_DEGREES = re.compile(r"\^(?:\\circ(?![A-Za-z])|\{ ?\\circ ?\})")
_CLOSERS = re.compile(rf"(?:[ \t)\]}}>|*_`'\"%.,;!?{CURRENCIES}]|\\(?![A-Za-z]))*+")
_CONTINUES = re.compile(  # after closers: an operator, or a command that makes another number
    r"[*+=<^~&(]|/(?![A-Za-z]{2})|-\s*+[0-9(\\$.{]|:\s*+[0-9]|\\(?:times|cdot|div|frac|pm|sqrt|pi|approx|overline|bar|dot|ldots)(?![A-Za-z])"
)
_REMARK = re.compile(r"\(([^\W\d_][^()]*+)\)")  # (see step 2)
_RAISED_UNIT = re.compile(r"(?<![^A-Za-z][eExX])(?<=[A-Za-z}])\^?\{?[23]\}?(?![0-9])")  # m^2, ft3; not e3
_LETTER = "(?:[^\\W\\d_](?<![\u0e00-\uffff]))"  # Latin, Greek, Cyrillic; not scripts without spaces, nor letters that could be digits
_GLUED = re.compile(rf"{_LETTER}{{1,2}}(?!{_LETTER})|[OoIlQ\u039f\u03bf\u0406\u041e\u043e\u0417]++(?!{_LETTER})")
_SPELLED_SCALE = re.compile(r"\b(?:hundred|thousand|million|billion)\b", re.IGNORECASE)
_BASE = re.compile(r"\bbase\b", re.IGNORECASE)
_ORDINALS = frozenset({"st", "nd", "rd", "th"})
_BESIDE = rf"[\s%*_`'\"\\)\]}}>.,{{\u00a2{CURRENCIES}]"  # that changes nothing about a number
_UNITS = re.compile(rf"{_BESIDE}*+(?:(?:text\{{\s?)?[^\W\d_]++(?:\^?\{{?[23]\}}?)?(?:/[^\W\d_]++)?{_BESIDE}*+){{0,4}}")
_CONNECTIVES = re.compile(r"\b(?:and|to|but|is|if|so|because|times)\b", re.IGNORECASE)


def extract(text: str, extractor: Extractor) -> str | None:
    """Return the answer that a text gives, as a normalised number (`1,000.50` is `1000.5`); None when it gives none.

    strict: the number right after the last `####`, on the same line; currency, quotes, emphasis and brackets may stand
    before it; after it a unit and a remark, but nothing that makes another number of it, denies it or names another one.
    exact: the same, but nothing may stand after it save currency and up to four words of a unit. flexible: the last number
    of the text, where it is one by itself. Another question after a mark ends the text.
    """
    text = _to_its_question(text)
    if extractor != "flexible":
        return _after_the_mark(text, alone=extractor == "exact")
    form = last_form(text)
    return None if form is None else _first_number(form, alone=False)


def equal(extracted: str, ground_truth: str) -> bool:
    """Return True if two plain numbers are exactly equal. Raises UserError if one of them is not a plain number."""
    return (extracted == ground_truth and truth_number(ground_truth) == ground_truth) or (
        _number(extracted) == _number(ground_truth)
    )


def formatted(text: str) -> bool:
    """Return True if a number follows the last `####`."""
    return _after_the_mark(_to_its_question(text), alone=False) is not None


def check(ground_truth: str) -> None:
    """UserError when a ground truth is not a plain number."""
    _number(ground_truth)


def _number(text: str) -> str:
    """Return a plain number, never one with an exponent: `1e999999999` would cost gigabytes somewhere down the line."""
    number = truth_number(text) if len(text) < 100 else plain_number(text)
    if number is None:
        raise UserError(f"{text[:40]!r} is not a plain number such as 18, -3 or 1,000.5: correct the ground truth.")
    return number


def _to_its_question(text: str) -> str:
    """Return a text up to another question after its first mark."""
    following = _NEXT_QUESTION.search(text, mark) if (mark := text.find(MARK)) >= 0 else None
    return text[: following.start()] if following else text


def _after_the_mark(text: str, *, alone: bool) -> str | None:
    _, mark, tail = text.rpartition(MARK)
    if not mark:
        return None
    number = tail.strip(" ")
    if number.isascii() and number.isdecimal() and number[0] != "0":
        return number  # what nearly all texts end with
    return _first_number(tail.partition("\n")[0], alone=alone)


def _first_number(line: str, *, alone: bool) -> str | None:
    """Return the number that a line begins with, where the rest of the line leaves it as it is."""
    whole = without_end_tokens(to_latex(without_calculations(line))).replace("\\boxed{", "{")
    line = whole.lstrip(_DECORATION)
    before = whole[: len(whole) - len(line)]
    if "<" in before and ("<=" in before or ">" not in line):  # less than; <18> is in brackets
        return None
    negative = line[:1] in MINUS_SIGNS
    if negative:
        line = line[1:].lstrip(_DECORATION)
    number = _NUMBER.match(line)
    if number is None:
        return None
    rest = line[number.end() :]
    if rest and (not _leaves_it(rest, number.group()) or (alone and not _is_a_unit(rest))):
        return None
    return normalise(number.group().replace(" ", ""), negative=negative)


def _leaves_it(rest: str, number: str) -> bool:
    """Return True if the text after a number on its line is a unit or a remark."""
    if unicodedata.category(rest[0])[0] == "M":  # it strikes through, or draws a bar over, the last digit
        return False
    if rest.startswith("..") or (rest.startswith(".") and number.endswith(".")):  # 0.333...
        return False
    glued = _GLUED.match(rest)
    if glued and glued.group() not in _ORDINALS and unit_of(glued.group(), letters=True) is None:
        return False
    rest = _DEGREES.sub(" ", rest)
    after = _CLOSERS.match(rest)
    assert after is not None  # it may be empty
    if _CONTINUES.match(rest, after.end()) and not _REMARK.match(rest, after.end()):
        return False
    if not rest.isascii():
        if changes_the_last(rest):
            return False
        rest = without_words(rest)
    if _BASE.search(rest) or not all(_is_harmless(remark, number) for remark in _REMARK.findall(rest)):
        return False
    rest = _REMARK.sub(" ", rest)
    digits = _RAISED_UNIT.sub("", rest)
    return not any(map(str.isnumeric, digits)) and not changes_a_number(rest)


def _is_harmless(remark: str, number: str) -> bool:
    """Return True if a remark in brackets denies nothing, and spells no other number: 20 (twenty), 20 (see step two)."""
    spelled = spelled_first(remark)
    if spelled is not None and str(spelled) != normalise(number.replace(" ", ""), negative=False):
        return False
    return not changes_a_number(_SPELLED_SCALE.sub("", remark) if spelled else remark, by_numbers=False)


def _is_a_unit(rest: str) -> bool:
    return _UNITS.fullmatch(_DEGREES.sub(" ", rest)) is not None and _CONNECTIVES.search(rest) is None


VERIFIER = Verifier(name="gsm8k", extract=extract, equal=equal, formatted=formatted, check=check, same=equal)
