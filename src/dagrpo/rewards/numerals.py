r"""The grammar of one number: digits, points and separators.

| form | reading |
|---|---|
| `1234`, `12.5`, `.5` | the number |
| `1,234,567.5`, `1 234 567` | thousands: one to three digits, not from 0, then groups of three, all by the same comma or single space |
| `1,23`, `1, 234`, `0,125`, `1,234 567` | no number |
| `0.1\overline{6}`, `0.1\bar{6}`, `0.1(6)`, `0.\dot{3}`, `0.\dot{1}4\dot{2}` | the digits repeat without end |
| `1.5e-3`, `1E6` | scientific |

The separators are those that `spaced` leaves: `{,}` and `,\!` are a comma; `\,`, `\;`, `\ ` and `~` are a space. rational.py reads
signs and fractions, units.py what stands beside a number.
"""

import re
from fractions import Fraction

LONGEST = 1000  # digits of a number whose value is taken, zeros of its exponent among them

_SPACES = re.compile(  # but the second half of a matrix's \\
    r"(?<!\\)\\(?:[,;: \n]|(?:q?quad|thinspace|enspace)(?![A-Za-z])|hspace\*?\{[^{}]*+\})|~|\s++"
)
_NARROWED = re.compile(r"(?<=[0-9])\s*+(?:\\!\s*+)++(?=[0-9])")  # 3\!4 looks like 34, and is two numbers
_COMMAS = re.compile(r"\{,\}|,\\!")
GROUPED = r"[1-9][0-9]{0,2}(?:(?:,[0-9]{3})++|(?: [0-9]{3})++)(?![0-9])"
NUMERAL = re.compile(
    rf"(?P<grouped>{GROUPED})"
    r"(?:\.(?P<grouped_decimals>[0-9]++))?+"
    r"|(?P<whole>[0-9]*+)\.(?P<fixed>[0-9]*+)(?:\\(?:overline|bar)\s?\{(?P<bar>[0-9]++)\}|\((?P<brackets>[0-9]++)\)"
    r"|\\dot\s?\{(?P<dot>[0-9])\}(?:(?P<dots>[0-9]*+)\\dot\s?\{(?P<last_dot>[0-9])\})?)"
    r"|(?P<decimal>[0-9]++(?:\.[0-9]++)?+|\.[0-9]++)(?:[eE](?P<exponent>[-+]?[0-9]{1,30})(?![0-9A-Za-z.]))?"
)


def spaced(latex: str) -> str:
    r"""LaTeX with every kind of space as one space, every kind of thousands comma as a comma, and no `\!`."""
    if "\\" in latex or "{,}" in latex:
        latex = _NARROWED.sub(" ", _COMMAS.sub(",", latex)).replace("\\!", "")
    return _SPACES.sub(" ", latex)


def value_of(numeral: re.Match[str]) -> Fraction:
    """Return the value of what NUMERAL has matched. OverflowError: it has too many digits to take it."""
    parts = numeral.groupdict()
    exponent = int(parts["exponent"] or 0)
    if len(numeral.group()) + abs(exponent) > LONGEST:
        raise OverflowError
    if parts["grouped"]:
        whole = parts["grouped"].replace(",", "").replace(" ", "")
        return _decimal(whole, parts["grouped_decimals"] or "")
    if parts["fixed"] is not None:
        dotted = f"{parts['dot']}{parts['dots'] or ''}{parts['last_dot'] or ''}"
        return _repeating(parts["whole"], parts["fixed"], parts["bar"] or parts["brackets"] or dotted)
    whole, _, decimals = parts["decimal"].partition(".")
    return _decimal(whole, decimals) * Fraction(10) ** exponent


def _decimal(whole: str, decimals: str) -> Fraction:
    return Fraction(int((whole or "0") + decimals), 10 ** len(decimals))


def _repeating(whole: str, fixed: str, period: str) -> Fraction:
    """0.1(6) is (16 - 1) / 90: the digits without the fixed ones, over as many nines as repeat and zeros as are fixed."""
    without, all_of_them = int((whole or "0") + fixed), int((whole or "0") + fixed + period)
    return Fraction(all_of_them - without, (10 ** len(period) - 1) * 10 ** len(fixed))
