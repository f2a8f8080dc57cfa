r"""Currencies before a number or formula, and units after it.

words.py lists the units.
"""

import re
from collections.abc import Iterator

from dagrpo.rewards.formulas import COMMAND
from dagrpo.rewards.numbers import CURRENCIES
from dagrpo.rewards.words import unit_of

TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textsf|mbox|mathrm|mathbf|mathit|operatorname)\s*+\{([^{}]*+)\}")
_CURRENCY = re.compile(rf"([-+]?) *+(\\\$|[{CURRENCIES}]) *+([-+]?) *+(?=[0-9.\\])")
_DEGREES = re.compile(
    r" *\^ *(?:\{ ?\\circ ?\}|\\circ)(?= *+(?:\\text *\{ *)?[CF]?\}?\Z)|\\(?:text)?degree(?=\Z)|\\%(?=\Z)"
)
_UNIT_START = re.compile(rf"[A-Za-z%¢{CURRENCIES}]")
_SCIENTIFIC = re.compile(r"(?<=[0-9.])[eE](?=[-+]?[0-9])")


def without_currency(text: str) -> tuple[str, str] | None:
    """Return a text without the dollars of formulas and the currency before a number, and the currency; None: dollars do not pair."""
    dollars = text.count("$") - text.count("\\$")
    if dollars and dollars % 2 == 0:
        return " ".join(re.sub(r"(?<!\\)\$", " ", text).split()), ""
    sign = _CURRENCY.match(text)
    if sign is None or (sign.group(1) and sign.group(3)):
        return (text, "") if not dollars or text.endswith("$") else None
    rest = f"{sign.group(1)}{sign.group(3)}{text[sign.end() :]}"
    return None if "$" in rest else (rest, unit_of(sign.group(2), letters=False) or "")


def without_unit(text: str) -> tuple[str, str]:
    """Split a text into the text before its unit, and the unit; the unit is empty if what follows is not one."""
    degrees = _DEGREES.search(text)
    if degrees and text[: degrees.start()].strip():
        return text[: degrees.start()], "percent" if "%" in degrees.group() else "degree"
    in_text = TEXT.search(text)
    plain = TEXT.sub(r" \1 ", text) if in_text else text
    for start in _unit_starts(plain):
        head, tail = plain[:start].removesuffix("\\"), " ".join(plain[start:].split())
        unit = unit_of(tail.replace(" ^", "^"), letters=in_text is not None) if head.strip("\\ ") else None
        if unit is not None:
            return head, unit
    return text, ""


def _unit_starts(plain: str) -> Iterator[int]:
    """Yield the indices where a unit may begin: its first letter, or its last word if the formula has letters itself."""
    blank = COMMAND.sub(lambda command: "\\" * len(command.group()), _SCIENTIFIC.sub("0", plain))
    first = _UNIT_START.search(blank)
    if first:
        yield first.start()
        yield plain.rstrip().rfind(" ") + 1
