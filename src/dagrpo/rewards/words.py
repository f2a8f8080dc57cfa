"""Words, units and currencies beside a number, in closed lists.

Some leave the number unchanged, others change or deny it. With an unlisted word, a LaTeX answer is words and no number. For gsm8k
that word is a unit: every answer there is a number, and any noun may be counted.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from dagrpo.rewards.numbers import CURRENCIES

_SAME = {  # each unit with all of its names
    "dollar": "dollars usd buck bucks $",
    "cent": "cents ¢",
    "euro": "euros eur €",
    "pound sterling": "gbp £",
    "yen": "jpy yuan rmb ¥",
    "rupee": "rupees ₹",
    "won": "₩",
    "rouble": "roubles rubles rub ₽",
    "lira": "₺",
    "shekel": "shekels ₪",
    "baht": "฿",
    "naira": "₦",
    "peso": "pesos ₱",
    "dong": "₫",
    "hryvnia": "₴",
    "bitcoin": "bitcoins ₿",
    "percent": "% pct percentage",
    "degree": "degrees deg °",
    "radian": "radians rad",
    "millimetre": "millimeter millimeters millimetres mm",
    "centimetre": "centimeter centimeters centimetres cm",
    "metre": "meter meters metres",
    "kilometre": "kilometer kilometers kilometres km",
    "inch": "inches in",
    "foot": "feet ft",
    "yard": "yards yd",
    "mile": "miles mi",
    "milligram": "milligrams mg",
    "gram": "grams gm gms",
    "kilogram": "kilograms kg kgs",
    "pound": "pounds lb lbs",
    "ounce": "ounces oz",
    "ton": "tons tonne tonnes",
    "millilitre": "milliliter milliliters millilitres ml",
    "litre": "liter liters litres",
    "gallon": "gallons gal",
    "second": "seconds sec secs",
    "minute": "minutes min mins",
    "hour": "hours hr hrs",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs",
    "ante meridiem": "am",
    "post meridiem": "pm",
    "mile per hour": "mph",
    "kilometre per hour": "kph kmh",
}
_COUNTED = (
    "unit units point points way ways integer integers digit digits meal meals edge edges student students people person persons "
    "childrentickets multiples sue apple apples egg eggs book books item items step steps ticket tickets child children solution "
    "solutions value values"
)
_LETTERS = {
    "m": "metre",
    "s": "second",
    "g": "gram",
    "h": "hour",
    "L": "litre",
    "l": "litre",
    "J": "",
    "N": "",
    "W": "",
    "V": "",
}
CANONICAL = {name: unit for unit, names in _SAME.items() for name in (unit, *names.split())} | dict.fromkeys(
    _COUNTED.split(), ""
)

_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
_SCALES = (
    "hundred hundreds thousand thousands million millions billion billions trillion trillions dozen dozens lakh lakhs crore crores "
    "k K M B bn mn tn half halves third thirds fourth fourths fifth fifths sixth sixths eighth eighths ninth ninths tenth tenths "
    "hundredth hundredths thousandth thousandths quarter squared cubed factorial double twice triple "
    "mil mln mio thou lac lacs gross tens repeating recurring mille tausend millionen milliarden millones millón "
    "milhões mila milioni тыс тысяч тысяча тысячи млн миллион миллиона миллионов млрд ألف مليون 만 억 천 조"
)
_OPERATIONS = "plus minus divided multiplied mod modulo choose"
_DENIALS = (
    "or nor not no never wrong false incorrect mistaken mistake maybe perhaps possibly versus vs either neither isn ain unlikely "
    "invalid untrue impossible unless wait actually alternatively otherwise instead oops sorry correction excluded except else"
)
CHANGING = frozenset(" ".join((_NUMBERS, _SCALES, _OPERATIONS, _DENIALS)).split()) - {"one"}
_WORD = re.compile(r"[^\W\d_]++")
COMMAND = re.compile(r"\\([A-Za-z]++)")  # of LaTeX

_UNIT_WORD = rf"(?:(?:sq|cu)\.|[A-Za-z]++|\\?[%$]|[¢{CURRENCIES}])"
_POWER = r"(?:\^(?:\{ ?[23] ?\}|[23])|(?<=[A-Za-z])[23](?![0-9]))?"
_PER = r"(?: ?/ ?| ?\\cdot ?| per | )"
UNIT = re.compile(rf"{_UNIT_WORD}{_POWER}(?:{_PER}{_UNIT_WORD}{_POWER}){{0,4}}\.?")
_PARTS = re.compile(rf"[A-Za-z]++|[%¢{CURRENCIES}]")
_BESIDE_UNITS = frozenset({"per", "square", "cubic", "sq", "cu", "a", "an", "C", "F", "Celsius", "Fahrenheit"})


def changes_a_number(text: str) -> bool:
    """Return True if a word beside a number changes it, denies it, or names an alternative."""
    return any(word in CHANGING or word.lower() in CHANGING for word in _WORD.findall(text))


@lru_cache(maxsize=1 << 12)
def unit_of(text: str, *, letters: bool) -> str | None:
    r"""Return the unit that a text names; "" for one with a single name or several parts; None if the text names no unit.

    letters: whether a single letter is a unit (`\text{m}`) rather than a variable (`m`); in `m/s` it is.
    """
    if UNIT.fullmatch(text) is None:
        return None
    parts = _PARTS.findall(text)
    letters = letters or "/" in text
    names = [_canonical(part, letters) for part in parts if part not in _BESIDE_UNITS]
    if not names or None in names:
        return None
    return (names[0] or "") if len(names) == 1 else ""


def _canonical(word: str, letters: bool) -> str | None:
    if letters and word in _LETTERS:
        return _LETTERS[word]
    return CANONICAL.get(word, CANONICAL.get(word.lower()))


# ---- units and currencies of a LaTeX answer ----

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
