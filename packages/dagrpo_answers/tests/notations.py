r"""Numbers in every notation that is read, and texts beside numbers that make no answer of them: by classes, generated.

`WRITTEN` gives a text and its exact value, worked out from what was drawn and not by reading the text. `NO_ANSWERS` gives a text and
the numbers in it, none of which it may be right for.
"""

from fractions import Fraction

from hypothesis import strategies as st

Written = st.SearchStrategy[tuple[str, Fraction]]
SIGNS = st.sampled_from(["", "", "-", "\u2212", "\uff0d", "+"])
SEPARATORS = ["", ",", "{,}", ",\\!", "\\,", " ", "\\ ", "~", "\u202f", "\u2009", "\u00a0", "\uff0c"]
UNITS = (
    "dollars", "degrees", "cm", "km/h", "%", "\\%", " %", "percent", "\\text{ cm}", "\\text{ cm}^2", "\\mathrm{cm}",
    "^\\circ", "^{\\circ}",
    "\u00b0", "\u20ac", "square feet", "cm^2", "km^{2}", "\\text{ miles per hour}", "points", "\\text{ m}", "m/s",
    "\\text{ units}",
)  # fmt: skip
CURRENCIES = ("$", "\\$", "\u20ac", "\u00a3", "\\$ ")
VULGAR = {"\u00bd": (1, 2), "\u2153": (1, 3), "\u00be": (3, 4), "\u215e": (7, 8), "\u2159": (1, 6)}
SUPERSCRIPTS = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
FRACTIONS = (
    "{}/{}", "\\frac{{{}}}{{{}}}", "\\dfrac{{{}}}{{{}}}", "\\tfrac {{{}}} {{{}}}", "\\frac {{ {} }} {{ {} }}",
    "\\cfrac{{{}}}{{{}}}", "{}\u2044{}",
    "({})/({})", "{} / {}", "{} \\div {}", "{}\u00f7{}",
)  # fmt: skip
SHORT_FRACTIONS = (
    "\\frac{}{}",
    "\\frac {} {}",
    "\\dfrac {} {}",
    "\\tfrac{}{}",
    "\\frac{{{}}}{}",
    "\\frac{}{{{}}}",
    "\\frac{} {}",
)
DIGITS = st.integers(1, 9)
SMALL = st.integers(1, 999)
_SIGN = {"-": -1, "\u2212": -1, "\uff0d": -1}


def signed(magnitudes: Written) -> Written:
    """With a sign before it."""
    return st.tuples(SIGNS, magnitudes).map(lambda pair: (pair[0] + pair[1][0], _SIGN.get(pair[0], 1) * pair[1][1]))


def _grouped(number: int, separator: str) -> str:
    return f"{number:,}".replace(",", separator)


WHOLE = st.tuples(st.integers(0, 10**12), st.sampled_from(SEPARATORS)).map(
    lambda drawn: (_grouped(*drawn), Fraction(drawn[0]))
)
DECIMALS = st.tuples(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from(["", ",", "{,}"])
).map(
    lambda drawn: (
        f"{_grouped(drawn[0], drawn[3])}.{drawn[2] % 10 ** drawn[1]:0{drawn[1]}d}",
        drawn[0] + Fraction(drawn[2] % 10 ** drawn[1], 10 ** drawn[1]),
    )
)
FRACTION = st.tuples(SMALL, SMALL, st.sampled_from(FRACTIONS)).map(
    lambda drawn: (drawn[2].format(drawn[0], drawn[1]), Fraction(drawn[0], drawn[1]))
) | st.tuples(DIGITS, DIGITS, st.sampled_from(SHORT_FRACTIONS)).map(
    lambda drawn: (drawn[2].format(drawn[0], drawn[1]), Fraction(drawn[0], drawn[1]))
)
MIXED = st.tuples(
    SMALL, st.tuples(SMALL, SMALL).filter(lambda pair: pair[0] < pair[1]),
    st.sampled_from(["{} {}/{}", "{}\\frac{{{}}}{{{}}}", "{} \\frac{{{}}}{{{}}}", "{}\\ \\tfrac{{{}}}{{{}}}",
    "{}\\,\\dfrac {{{}}} {{{}}}"]),
).map(lambda drawn: (drawn[2].format(drawn[0], *drawn[1]), drawn[0] + Fraction(*drawn[1]))) | st.tuples(
    SMALL, st.sampled_from(sorted(VULGAR)), st.sampled_from(["", " "])
).map(lambda drawn: (f"{drawn[0]}{drawn[2]}{drawn[1]}", drawn[0] + Fraction(*VULGAR[drawn[1]])))  # fmt: skip
REPEATING = st.tuples(
    st.integers(0, 99), st.sampled_from(["", "0", "1", "25"]), st.integers(1, 4), SMALL,
    st.sampled_from(["{}.{}\\overline{{{}}}", "{}.{}\\bar{{{}}}", "{}.{}({})", "{}.{}\\overline {{{}}}"]),
).map(
    lambda drawn: (
        drawn[4].format(drawn[0], drawn[1], f"{drawn[3] % 10 ** drawn[2]:0{drawn[2]}d}"),
        # 0.12(345) = 12/100 + 345/99900
        drawn[0] + Fraction(int(drawn[1] or "0"), 10 ** len(drawn[1]))
        + Fraction(drawn[3] % 10 ** drawn[2], (10 ** drawn[2] - 1) * 10 ** len(drawn[1])),
    )
)  # fmt: skip
SCIENTIFIC = st.tuples(
    SMALL, st.integers(0, 2), st.integers(-9, 9),
    st.sampled_from(["{}e{}", "{}E{}", "{} \\times 10^{{{}}}", "{}\\cdot 10^{{{}}}", "{}*10^{}", "{} \u00d7 10^{{{}}}",
    "{}\u00d710"]),
).map(
    lambda drawn: (
        drawn[3].format(f"{drawn[0]}.{'5' * drawn[1]}".rstrip("."), drawn[2])
        + (str(drawn[2]).translate(SUPERSCRIPTS) if drawn[3].endswith("10") else ""),
        (drawn[0] + (Fraction(int("5" * drawn[1]), 10 ** drawn[1]) if drawn[1] else 0)) * Fraction(10) ** drawn[2],
    )
)  # fmt: skip
_POWER = st.tuples(
    st.integers(2, 12), st.integers(2, 9), st.sampled_from(["{}^{}", "{}^{{{}}}", "{}**{}", "raised"])
).map(
    lambda drawn: (
        f"{drawn[0]}{str(drawn[1]).translate(SUPERSCRIPTS)}" if drawn[2] == "raised" else drawn[2].format(*drawn[:2]),
        Fraction(drawn[0] ** drawn[1]),
    )
)
POWERS = st.tuples(
    st.lists(_POWER, min_size=1, max_size=3), st.sampled_from([" ", " \\cdot ", "\\times ", "*", " \u00b7 "])
).map(lambda drawn: (drawn[1].join(text for text, _ in drawn[0]), _product([value for _, value in drawn[0]])))
BINOMIALS = st.tuples(
    DIGITS, DIGITS, st.sampled_from(["\\binom {} {}", "\\binom{}{}", "\\binom{{{}}}{{{}}}", "\\dbinom {} {}"])
).map(lambda drawn: (drawn[2].format(max(drawn[:2]), min(drawn[:2])), _binomial(max(drawn[:2]), min(drawn[:2]))))


def _product(values: list[Fraction]) -> Fraction:
    product = Fraction(1)
    for value in values:
        product *= value
    return product


def _binomial(above: int, below: int) -> Fraction:
    return _product([Fraction(above - step, step + 1) for step in range(below)])


_PLAIN = signed(WHOLE | DECIMALS)
WITH_UNITS = st.tuples(
    signed(WHOLE | DECIMALS | FRACTION | MIXED), st.sampled_from(UNITS), st.sampled_from(["", " "])
).map(lambda drawn: (f"{drawn[0][0]}{drawn[2] or ' ' * drawn[1][0].isalpha()}{drawn[1]}", drawn[0][1]))
WITH_CURRENCY = st.tuples(WHOLE | DECIMALS, st.sampled_from(CURRENCIES), st.sampled_from(["", "-"])).map(
    lambda drawn: (f"{drawn[2]}{drawn[1]}{drawn[0][0]}", -drawn[0][1] if drawn[2] else drawn[0][1])
)
DRESSED = st.tuples(
    _PLAIN | signed(FRACTION | MIXED),
    st.sampled_from(["${}$", "\\({}\\)", "$${}$$", "**{}**", "{}.", "{}\u3002", "x = {}", "\\text{{{}}}", "\\mathbf{{{}}}",
    "{}</s>", "{}<|im_end|>", "m\\angle A = {}", "${}$ cm", "\\displaystyle {}", "\\text{{Area}} = {}", " {} "]),
).map(lambda drawn: (drawn[1].format(drawn[0][0]), drawn[0][1]))  # fmt: skip

WRITTEN: dict[str, Written] = {
    "separators": signed(WHOLE),
    "decimals": signed(DECIMALS),
    "fractions": signed(FRACTION),
    "mixed numbers": signed(MIXED),
    "repeating decimals": signed(REPEATING),
    "scientific notation": signed(SCIENTIFIC),
    "powers and products": POWERS,
    "binomials": BINOMIALS,
    "units, percent and degrees": WITH_UNITS,
    "currency": WITH_CURRENCY,
    "dressing": DRESSED,
}

# Two numbers that differ, the second of which is no group of three digits.
TWO = st.tuples(st.integers(2, 99), st.integers(2, 99)).filter(lambda pair: pair[0] != pair[1])
NO_ANSWERS = {
    "alternatives": (
        "{} or {}", "{}\\text{{ or }}{}", "${}$ or ${}$", "{}\\text{{ or ${}$}}", "x={} or y={}", "{}, or {}",
        "either {} or {}", "{} \\lor {}",
        "{} and {}", "{} \\vee {}", "x={}, y={}", "x={} y={}", "{} (or {})", "{}; {}", "{} | {}", "{}&{}", "{}\\\\{}",
        "{} vs {}", "{} $ {}",
    ),
    "denials": (
        "not {}", "definitely not ${}$", "{} is wrong", "{}\\text{{ is wrong}}", "\\text{{not }}{}", "I do not know, {}?",
        "{}?", "\\neq {}", "\\ne {}",
        "\\not= {}", "> {}", "< {}", "\\ge {}", "<= {}", "!= {}", "\u2260 {}", "\\approx {}", "~{}", "\\sim {}", "\\neg {}",
        "maybe {}", "no, {}",
    ),
    "side by side": (
        "{} {}", "{}\\;{}", "{}\\ {}", "{}~{}", "{}\\quad {}", "\\frac{{1}}{{2}} {}", "{}, {}", "{},{}",
        "${}$ ${}$", "{}{{}} {}",
    ),
    "ranges and times": ("{}\u2013{}:{}", "{}:{}", "{} to {}", "between {} and {}", "{} \\pm {}", "\\pm {}", "{}\\ldots",
    "{}...", "{}, \\ldots, {}"),
    "scales": ("{} thousand", "{} million dollars", "{}k", "{} dozen", "{} hundred", "{}\\text{{ thousand}}", "{} billion",
    "{} squared", "{} halves"),
    "what cannot be parsed": (
        "{{{}", "\\frac{{{}", "{}/", "{} \\cdot", "{}^", "+*{}", "{}(", "\\foo{{{}}}", "\\frac{{{}}}{{", "{}_{}", "{}++{}",
        "{}@{}", "--{}", "{}#",
    ),
    "equations that are false": ("{}={}", "1000 + {} = {}", "{} = {} + 1000", "2 \\cdot 1000 = {}"),
}  # fmt: skip
