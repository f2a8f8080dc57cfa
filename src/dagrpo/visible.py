"""Text from a model or a data set, made fit for a page or a terminal: nothing in it can hide, reorder or control."""

import unicodedata

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # Unicode categories without a glyph of their own
LEFT_OUT = " [... {:,} more characters]"


def visible(text: str, longest: int | None = None) -> str:
    """The text, cut to a length, with control and format characters and lone surrogates as \\u escapes.

    So no escape sequence, bell, right-to-left override or zero-width space gets through; line feeds and tabs do. Not
    escaped for HTML, nor for rich's markup.
    """
    shown = "\n".join(map(_visible_line, (text if longest is None else text[:longest]).split("\n")))
    left_out = 0 if longest is None else len(text) - longest
    return shown if left_out <= 0 else shown + LEFT_OUT.format(left_out)


def one_line(text: str, longest: int) -> str:
    """As `visible`, on one line: what is longer than that ends in an ellipsis."""
    shown = " ".join(visible(text[: 4 * longest]).split())
    is_whole = len(shown) <= longest and len(text) <= 4 * longest
    return shown if is_whole else shown[: longest - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _visible_line(line: str) -> str:
    return line if line.isprintable() else "".join(map(_visible_character, line))  # most are, and long


def _visible_character(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in HIDDEN:
        return character
    return f"\\u{ord(character):04x}"
