"""Calculations as GSM8K marks them: `36*2=<<36*2=72>>72`."""

import re

from dagrpo_answers.numbers import plain_number

_CALCULATION = re.compile(r"<<[^<>\n]*+>>")  # <<36*2=72>>, as the data set marks them
_NUMBER_BEFORE = re.compile(r"[0-9.,]++ ?\Z")
_NUMBER_AFTER = re.compile(r"[0-9.,]++")
_LONGEST_BEFORE = 40  # characters


def without_calculations(line: str) -> str:
    """Return a line without the calculations whose result stands after or before them, in linear time. Others stay."""
    if "<<" not in line:
        return line

    def shown(calculation: re.Match[str]) -> str:
        start, end = calculation.span()
        after = _NUMBER_AFTER.match(line, end)
        beside = after or _NUMBER_BEFORE.search(line, max(0, start - _LONGEST_BEFORE), start)
        result = plain_number(calculation.group()[2:-2].rpartition("=")[2])
        same = beside is not None and plain_number(beside.group().strip(" ").rstrip(".,")) == result
        return "" if same and result is not None else calculation.group()

    return _CALCULATION.sub(shown, line)
