"""What exact_match and substring_match share: short answers in words, in `<answer>...</answer>`, as search-R1 grades them.

Case, punctuation, articles and extra space do not count (the normalisation of SQuAD, arXiv:1606.05250), save the sign and the
decimal point of a number: -5 is not 5, and 3.5 is not 35.
"""

import json
import re
import unicodedata
from functools import lru_cache

from dagrpo.errors import UserError
from dagrpo.params.base import Extractor
from dagrpo.rewards.numbers import to_ascii
from dagrpo.rewards.reading import answer_line, answer_tag, only_answer_tag

LONGEST_COMPOSED = 1000  # characters of an answer in which accents are one with their letters

_PUNCTUATION = re.compile(r"\.(?![0-9])|(?<=[0-9a-z])-|-(?![0-9.])|[!\"#$%&'()*+,/:;<=>?@\[\\\]^_`{|}~]")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def extract(text: str, extractor: Extractor) -> str | None:
    """strict: the last `<answer>...</answer>`; exact: the only one, at the end; flexible: that, else a line `Answer:`."""
    if extractor == "exact":
        return only_answer_tag(text)
    answer = answer_tag(text)
    return answer_line(text) if answer is None and extractor == "flexible" else answer


def formatted(text: str) -> bool:
    """Whether there is an `<answer>` with something in it."""
    return answer_tag(text) is not None


def normalise(text: str) -> str:
    """Lower case without punctuation and articles, single spaces, in linear time."""
    plain = text if text.isascii() else _without_unicode_punctuation(to_ascii(text))
    return " ".join(_ARTICLE.sub(" ", _PUNCTUATION.sub("", plain.lower())).split())


def _without_unicode_punctuation(text: str) -> str:
    composed = unicodedata.normalize("NFKC", text) if len(text) <= LONGEST_COMPOSED else text  # quadratic
    return "".join(c for c in composed if c.isascii() or unicodedata.category(c)[0] not in "PS")


@lru_cache(maxsize=1 << 14)
def accepted_texts(ground_truth: str) -> tuple[str, ...]:
    """The normalised texts that a ground truth accepts. UserError when it is not a JSON list of texts."""
    try:
        texts = json.loads(ground_truth)
    except (ValueError, RecursionError):
        texts = None
    listed = isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
    accepted = tuple(map(normalise, texts)) if listed else ()
    if not accepted or "" in accepted:
        raise UserError(
            f"{ground_truth[:40]!r} is not a JSON list of texts with a letter or digit in each: "
            'write it as ["Paris", "City of Paris"].'
        )
    return accepted


def check(ground_truth: str) -> None:
    """UserError when a ground truth is not a JSON list of texts, each of which says something."""
    accepted_texts(ground_truth)
