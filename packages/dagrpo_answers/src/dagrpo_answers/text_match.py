"""Short answers in `<answer>...</answer>`, compared as search-R1 does.

Case, punctuation, articles, markup and extra space do not count (the normalisation of SQuAD, arXiv:1606.05250), save what belongs to
a number: -5 is not 5, 3.5 and 3/5 are not 35, 2^3 is not 23, and > 5 is not 5. Unlike the published one, a sign that separates words
(`Paris,France`) is a space; full stops, apostrophes and hyphens join (`U.S.A.`, `well-known`).
"""

import html
import json
import re
import unicodedata
from functools import lru_cache

from dagrpo_answers.errors import UserError
from dagrpo_answers.numbers import INVISIBLE, VULGAR, to_ascii
from dagrpo_answers.reading import answer_line, answer_tag, only_answer_tag
from dagrpo_answers.verifier import Extractor

LONGEST_COMPOSED = 1000  # characters of an answer in which accents are one with their letters

_MARKUP = re.compile(
    r"</?[a-z][a-z0-9]{0,15}+(?:\s[^<>]*+)?>|\\(?:boxed|fbox|text|textbf|textit|mathrm|mathbf|mbox|emph)(?=\s*\{)"
)
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})++(?![0-9,])")
_SIGNS = "\u00d7\u00f7\u00b7\u22c5\u00b1\u2260\u2264\u2265\u2248\u221a\u2213"
_APOSTROPHES = "\u2018\u2019\u02bc"
_OF_NUMBERS = re.compile(  # signs that change the number beside them
    rf"(?<=[0-9])[!-+/:<-@\[-`{{-~{_SIGNS}{_APOSTROPHES}-]++(?=[0-9])"  # 3/5, 2^3, 12:30, 2(3)
    r"|\A\s*+-\s++(?=\.?[0-9])|(?<=(?<![0-9a-z])[a-z])(?:\+\+|#)"  # - 5, c++
    rf"|(?<=[0-9])\s*+[-+*/^={_SIGNS}]\s*+(?=[0-9])"  # 3 / 5
    rf"|(?<=[0-9)}}])[+*/^=<>{_SIGNS}](?=[a-z(])|(?<=[a-z)}}])[+*/^<>{_SIGNS}](?=[0-9])"  # 2^x, x/2
    rf"|(?<![<>~!{_SIGNS}])[<>~!{_SIGNS}]++=?\s*+(?=[-+.0-9$])|(?<=[0-9])(?:\+|\s?%)"  # >5, !=5, 5+, 5%
)
_JOINING = re.compile(r"(?<![a-z]{2})\.(?![0-9])|\.(?![0-9a-z])|(?<=[0-9a-z])-|-(?![0-9.])|['`\u2018\u2019\u02bc]")
_SEPARATING = re.compile(r"\.(?![0-9])|[!\"#$%&()*+,/:;<=>?@\[\\\]^_{|}~]")
_PROTECTED = 0xE000  # offset of a number's signs while punctuation is removed
_AS_IT_WAS = {_PROTECTED + code: code for code in (*range(0x21, 0x7F), *map(ord, _SIGNS + _APOSTROPHES))}
_RAISED = str.maketrans(
    dict(
        zip(
            "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079",
            (f"^{digit}" for digit in range(10)),
            strict=True,
        )
    )
    | {sign: f" {numerator}/{denominator}" for sign, (numerator, denominator) in VULGAR.items()}
    | {"\u2044": "/", "\u2215": "/"}
    | {chr(0x2460 + number): f" {number + 1} " for number in range(20)}  # digits in circles
)
_ENTITY = re.compile(r"&(?:[A-Za-z]{2,8}|#[0-9]{1,6}|#x[0-9A-Fa-f]{1,5});")
_ARTICLE = re.compile(r"\b(?:an|the)\b|\ba\b(?=\s++\S)")  # the A of vitamin A is not an article


def extract(text: str, extractor: Extractor) -> str | None:
    """Return the answer of a text.

    strict: the last `<answer>...</answer>`; exact: the only one, at the end; flexible: as strict, else a line `Answer:`.
    """
    if extractor == "exact":
        return only_answer_tag(text)
    answer = answer_tag(text)
    return answer_line(text) if answer is None and extractor == "flexible" else answer


def formatted(text: str) -> bool:
    """Return True if there is an `<answer>` that is not empty."""
    return answer_tag(text) is not None


def normalise(text: str) -> str:
    """Return a text in lower case without punctuation and articles, with single spaces, in linear time. Signs of a number stay."""
    text = _ENTITY.sub(lambda entity: html.unescape(entity.group()), text) if "&" in text else text
    plain = text if text.isascii() else to_ascii(INVISIBLE.sub("", text).translate(_RAISED))
    plain = (unicodedata.normalize("NFKC", plain) if len(plain) <= LONGEST_COMPOSED else plain).lower()  # quadratic
    plain = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), _MARKUP.sub(" ", plain))
    plain = _OF_NUMBERS.sub(_protected, plain)
    if not plain.isascii():
        plain = "".join(map(_without_unicode_punctuation, plain))
    plain = _ARTICLE.sub(" ", _SEPARATING.sub(" ", _JOINING.sub("", plain)))
    return " ".join(plain.translate(_AS_IT_WAS).split())


def same(answer: str, other: str) -> bool:
    """Return True if two answers have the same normalised text."""
    return normalise(answer) == normalise(other)


def _protected(signs: re.Match[str]) -> str:
    return "".join(chr(_PROTECTED + ord(sign)) for sign in signs.group() if not sign.isspace())


def _without_unicode_punctuation(character: str) -> str:
    """Return the character; a space for one that separates words. Signs of mathematics and apostrophes stay."""
    category = unicodedata.category(character)
    if character.isascii() or category[0] not in "PS" or category == "Sm":
        return character
    return character if character in _APOSTROPHES else " "


def texts_of(ground_truth: str) -> list[str]:
    """Return the texts of a ground truth as they are written; none if it is not a JSON list of texts."""
    try:
        texts = json.loads(ground_truth)
    except (ValueError, RecursionError):
        return []
    return texts if isinstance(texts, list) and all(isinstance(text, str) for text in texts) else []


@lru_cache(maxsize=1 << 14)
def accepted_texts(ground_truth: str) -> tuple[str, ...]:
    """Return the normalised texts that a ground truth accepts. Raises UserError if it is not a JSON list of texts."""
    accepted = tuple(map(normalise, texts_of(ground_truth)))
    if not accepted or "" in accepted:
        raise UserError(
            f"{ground_truth[:40]!r} is not a JSON list of texts with a letter or digit in each: "
            'write it as ["Paris", "City of Paris"].'
        )
    return accepted


def check(ground_truth: str) -> None:
    """Raise UserError unless a ground truth is a JSON list of texts with a letter or digit in each."""
    accepted_texts(ground_truth)
