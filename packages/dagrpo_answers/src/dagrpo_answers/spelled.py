"""Numbers in English words, and Chinese words that change a number."""

import re
from itertools import takewhile

_UNITS = "one two three four five six seven eight nine"
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: number for number, word in enumerate(f"zero {_UNITS} {_TEENS}".split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), start=2)
}
_SCALES = {"billion": 10**9, "million": 10**6, "thousand": 10**3}
_LONGEST = 200  # characters
_WORD = re.compile(r"[a-z]++")
_SPELLED = re.compile(r"[A-Za-z]++(?:[ -]++[A-Za-z]++){0,15}+")
_UNIT, _TEEN, _TEN = (f"(?:{names.replace(' ', '|')})" for names in (_UNITS, _TEENS, _TENS))
_BELOW_100 = rf"(?:{_TEN} {_UNIT}|{_TEN}|{_TEEN}|{_UNIT}) "
_BELOW_1000 = rf"(?:{_BELOW_100}hundred (?:(?:and )?{_BELOW_100})?|{_BELOW_100})"
_NUMBER = re.compile(  # every word ends with a space
    rf"zero |(?!and ){''.join(f'(?:(?:and )?{_BELOW_1000}{scale} )?' for scale in _SCALES)}(?:(?:and )?{_BELOW_1000})?"
)
_VOCABULARY = {*_SMALL, *_SCALES, "hundred", "and"}


def spelled_first(text: str) -> int | None:
    """Return the whole number that the first words of a text spell: 20 for `twenty dollars`. -1 if they are numbers that spell none."""
    words = list(takewhile(lambda word: word in _VOCABULARY, _WORD.findall(text[:_LONGEST].lower())))
    number = spelled(" ".join(words).removesuffix(" and"))
    return -1 if number is None and not _SMALL.keys().isdisjoint(words) else number


def spelled(text: str) -> int | None:
    """Return the whole number that a text spells, None for other words: `three four`, `five hundred hundred`."""
    words = _WORD.findall(text.lower()) if _SPELLED.fullmatch(text) else []
    if not words or _NUMBER.fullmatch(" ".join([*words, ""])) is None:
        return None
    whole, part = 0, 0
    for word in words:
        if word in _SCALES:
            whole, part = whole + part * _SCALES[word], 0
        else:
            part = part * 100 if word == "hundred" else part + _SMALL.get(word, 0)
    return whole + part


LETTERS = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # of Japanese and Korean too
_AS_WORDS = re.compile("一(?=[共起样樣定些直般])|千(?=[米克瓦卡])")  # altogether, kilometre
_BEFORE = re.compile(  # not, about, minus, times, more than, or; the numerator of a fraction; 三十42
    "(?:[没沒]有[\u4e00-\u9fff]{1,2}|不是|不到|不足|不会是|不|非|没有?|沒有?|未|(?<!节)约|約|大[约約][\u4e00-\u9fff]{0,3}|負|负|减去?|減去?|第|或者?|乘以?|除以|(?<![增参])加上?|超过|超過|[多少大小低高]于|比|"
    "(?<!百)分之|[零二三四五六七八九十百千万亿萬億])\\Z"
)
_RANGE = re.compile(r"[0-9][^0-9]{0,2}[到至]\Z")
_AFTER = re.compile(  # scales, a half, some more; wrong, or, between
    "\\A[ ]?[十百千万亿萬億半多余餘几幾来來]|[个個]半|点[零一二三四五六七八九]|不[对對是正]|并非|错|錯|或|[还還]是|之[间間]"
)
_NEAR = 8  # characters before a number


def changes_the_next(text: str) -> bool:
    """Return True if the end of a text changes the number after it: `不是`, `约`, `第`."""
    end = text[-_NEAR:]
    return _BEFORE.search(end) is not None or _RANGE.search(end) is not None


def changes_the_last(text: str) -> bool:
    """Return True if a text changes the number before it: `万`, `个半`, `是错的`."""
    return _AFTER.search(without_words(text)) is not None


def without_words(text: str) -> str:
    """Return a text without the numerals that are part of a word: `一共`, `千米`."""
    return _AS_WORDS.sub("", text)
