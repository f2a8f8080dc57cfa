"""Normal form of questions, by which two of them are the same.

Case, white space, LaTeX's dollar signs, quotation marks and the marks at the end of a clause are ignored; signs, operators, braces and
digits stay, so that `x-1` is not `x+1`, `3.5` not `3 5`, and `5!` not `5`.
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from dagrpo.core.types import Row

_TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+|\S")  # a number, a word, or any other single character
_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+")
_QUOTES = r"[\"“”„«»]|``|''"
_MATHEMATICS = r"\\[()\[\],;]|\\ |\$"  # where LaTeX's mathematics begins and ends, and its spaces
_CLAUSE_END = r"[.?;:](?=\s|\$|\\[)\]]|$)"
_LAYOUT = re.compile(rf"<image>|{_MATHEMATICS}|{_QUOTES}|{_CLAUSE_END}")
_SAME_SIGN = str.maketrans({"’": "'", "‘": "'", "′": "'", "−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*"})
_MARKS = {"<super>": "^", "<sub>": "_", "<fraction>": " "}  # NFKC alone makes 102 of 10² and 11/2 of 1½


@lru_cache(maxsize=1 << 18)
def normalised(text: str) -> str:
    """Return the normal form: lower case, compatible characters (NFKC) as one, single spaces between tokens."""
    plain = text if text.isascii() else _compatible(text)
    return " ".join(_TOKEN.findall(_LAYOUT.sub(" ", plain.lower())))


def words(normal: str) -> list[str]:
    """Return the words and numbers of a normal form; signs and operators are left out."""
    return _WORD.findall(normal)


def runs(sequence: Sequence[str], length: int) -> list[str]:
    """Return every run of `length` words, in their order; [] if there are fewer words."""
    return [" ".join(sequence[start : start + length]) for start in range(len(sequence) - length + 1)]


def exact_identity(row: Row) -> tuple[str, ...]:
    """Return the identity of exactly this problem: its question and its images."""
    return (row.question, *_digests(row))


def identity(row: Row) -> tuple[str, ...]:
    """Return the identity of a problem in any typography. `Find x.` beside another figure is another problem."""
    return (normalised(row.question), *_digests(row))


def _digests(row: Row) -> tuple[str, ...]:
    return tuple(hashlib.sha256(image).hexdigest() for image in row.images)


def _compatible(text: str) -> str:
    marked = "".join(_marked(character) for character in text)
    return unicodedata.normalize("NFKC", marked).replace("\u2044", "/").translate(_SAME_SIGN)


def _marked(character: str) -> str:
    kind = unicodedata.decomposition(character).partition(" ")[0]
    return _MARKS.get(kind, "") + character
