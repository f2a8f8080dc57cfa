"""Untrusted text with control and invisible characters escaped.

For a page or a terminal: nothing in a model's or a data set's text can hide, reorder or control.
"""

import re
import unicodedata
from collections.abc import Iterable
from itertools import islice
from reprlib import Repr

from dagrpo.core.redaction import redacted, without_passwords

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # Unicode categories without a glyph
# Letters, marks and a symbol without ink: fillers, a blank of Braille, variation selectors. One text or emoji selector after a
# character is how emoji are written; a row of them hides a message.
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0d\U000e0100-\U000e01ef]|(?:(?<=[\ufe0e\ufe0f])|^)[\ufe0e\ufe0f]"
)
LONGEST_SENTENCE = 480
LONGEST_VALUE = 80
LONGEST_READ = 8192  # characters of a value, of which only the ends are shown
LARGEST_WRITTEN_BITS = 64
MOST_MISTAKES = 10  # mistakes at once
GAP = " [...] "
LEFT_OUT = " [... {:,} more characters]"


def visible(text: str, longest: int | None = None) -> str:
    """Cut the text to a length, with control and format characters and lone surrogates as \\u escapes.

    So no escape sequence, bell, right-to-left override or zero-width space gets through; line feeds and tabs do. Not
    escaped for HTML, nor for rich's markup.
    """
    visible_text = "\n".join(map(_visible_line, (text if longest is None else text[:longest]).split("\n")))
    left_out = 0 if longest is None else len(text) - longest
    return visible_text if left_out <= 0 else visible_text + LEFT_OUT.format(left_out)


def one_line(text: str, longest: int) -> str:
    """Escape as `visible` does, on one line; a longer text ends in an ellipsis."""
    line = " ".join(visible(text[: 4 * longest]).split())
    if len(line) <= longest and len(text) <= 4 * longest:
        return line
    # redacted before it is cut: the start of a secret is not recognised
    line = " ".join(visible(redacted(text[: 4 * longest])).split())
    return line[: longest - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _visible_line(line: str) -> str:
    line = INVISIBLE.sub(lambda found: _escaped(found[0]), line)
    return line if line.isprintable() else "".join(map(_visible_character, line))  # most are, and long


def _visible_character(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in HIDDEN:
        return character
    return _escaped(character)


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def sentence(text: str) -> str:
    """Return a message on one line, under 500 characters. The middle of a longer one is left out: the remedy stands at the end."""
    if len(text) > 8 * LONGEST_SENTENCE:  # before every character is looked at
        text = text[: 4 * LONGEST_SENTENCE] + text[-4 * LONGEST_SENTENCE :]
    line = " ".join(visible(text).split())
    if len(line) <= LONGEST_SENTENCE:
        return line
    line = " ".join(visible(redacted(text)).split())  # before it is cut: a part of a secret is not recognised
    if len(line) <= LONGEST_SENTENCE:
        return line
    half = (LONGEST_SENTENCE - len(GAP)) // 2
    return line[:half] + GAP + line[-half:]


def sentences(first: Iterable[str], count: int) -> str:
    """Return the first of `count` mistakes, one to a line, and how many more there are."""
    messages = [sentence(each) for each in islice(first, MOST_MISTAKES)]
    return "\n".join(
        messages if count <= MOST_MISTAKES else [*messages, f"There are {count - MOST_MISTAKES:,} more mistakes."]
    )


def brief(value: object) -> str:
    """Return a value's repr on one line and cut, however large the value; passwords of addresses are hidden."""
    return one_line(_BRIEF.repr(value), LONGEST_VALUE)


class _Brief(Repr):
    """A repr that limits lists, texts and numbers to the length of a message."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = LONGEST_VALUE

    def repr_str(self, x: str, level: int) -> str:
        """Hide passwords before anything is cut, so that no part of one stays."""
        ends = x if len(x) <= LONGEST_READ else x[: LONGEST_READ // 2] + GAP + x[-LONGEST_READ // 2 :]
        return super().repr_str(without_passwords(ends), level)

    def repr_int(self, x: int, level: int) -> str:
        """Return a long integer's repr without Python's error for more than 4,300 digits."""
        return repr(x) if x.bit_length() <= LARGEST_WRITTEN_BITS else f"an integer of {x.bit_length():,} bits"


_BRIEF = _Brief()
