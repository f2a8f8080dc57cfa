"""Stages' entries of dvc.lock, found without parsing YAML.

DVC's own reader and writer take seconds for a megabyte. Here an entry is the lines from one name to the next, so that a stage is
recorded at the same cost however many other experiments dvc.lock holds.
"""

import re
from collections.abc import Mapping

HEAD = "schema: '2.0'\nstages:\n"
CUT_SHORT = "it is cut short"
_START = re.compile(r"^(?=  [^ ])", re.MULTILINE)
_ENTRY = re.compile(r"  [^ ?#\n-][^\n]*:\n(?:    [^\n]*\n)+")
_NEITHER = re.compile(
    r"^(?! |#|\w+:|\n)", re.MULTILINE
)  # the start of a line that is in no entry and no key of the file


def fault_of(text: bytes) -> str | None:
    """Return what a merge, a full disk or a kill has done to a dvc.lock; None if its lines are as DVC writes them."""
    if not text.endswith(b"\n"):
        return CUT_SHORT
    try:
        lines = text.decode()
    except UnicodeDecodeError:
        return "it is not text"
    strange = _NEITHER.search(lines)
    if strange is not None and strange.start() < len(lines):
        return f"it is not YAML: line {lines.count(chr(10), 0, strange.start()) + 1}"
    return None if re.search(r"^schema:", lines, re.MULTILINE) else "it is not what DVC writes"


def entries_of(text: str) -> dict[str, str] | None:
    """Return the lines of each stage's entry by the first one; None for a dvc.lock that has anything else in it."""
    if not text.startswith(HEAD):
        return None
    before, *entries = _START.split(text[len(HEAD) :])
    if before or not all(map(_ENTRY.fullmatch, entries)):
        return None
    return {entry.partition("\n")[0]: entry for entry in entries}


def text_of(entries: Mapping[str, str]) -> str:
    """Return the text of a dvc.lock with these entries."""
    return HEAD + "".join(entries.values())
