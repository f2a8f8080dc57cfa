"""Words, units and currencies beside a number, in closed lists.

Some leave the number unchanged, others change or deny it. With an unlisted word, a LaTeX answer is words and no number. For gsm8k
that word is a unit: every answer there is a number, and any noun may be counted.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from dagrpo_answers.numbers import CURRENCIES

_SAME = {  # each unit with all of its names
    "dollar": "dollars usd buck bucks $ 美元 美金",
    "cent": "cents ¢",
    "euro": "euros eur € 欧元",
    "pound sterling": "gbp £ 英镑",
    "yen": "jpy yuan rmb ¥ 元 块 块钱 圆 円 人民币",
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
    "degree": "degrees deg ° 度 摄氏度",
    "radian": "radians rad",
    "millimetre": "millimeter millimeters millimetres mm 毫米",
    "centimetre": "centimeter centimeters centimetres cm 厘米 公分",
    "metre": "meter meters metres 米 公尺",
    "kilometre": "kilometer kilometers kilometres km 千米 公里",
    "inch": "inches in 英寸",
    "foot": "feet ft 英尺",
    "yard": "yards yd",
    "mile": "miles mi 英里",
    "milligram": "milligrams mg 毫克",
    "gram": "grams gm gms 克",
    "kilogram": "kilograms kg kgs 千克 公斤",
    "pound": "pounds lb lbs",
    "ounce": "ounces oz",
    "ton": "tons tonne tonnes 吨",
    "millilitre": "milliliter milliliters millilitres ml 毫升",
    "litre": "liter liters litres 升 公升",
    "gallon": "gallons gal",
    "second": "seconds sec secs 秒 秒钟",
    "minute": "minutes min mins 分钟 分",
    "hour": "hours hr hrs 小时 个小时 钟头 时",
    "day": "days 天 日",
    "week": "weeks 周 星期 个星期",
    "month": "months 月 个月",
    "year": "years yr yrs 年 岁 歲",
    "ante meridiem": "am",
    "post meridiem": "pm",
    "mile per hour": "mph",
    "kilometre per hour": "kph kmh",
}
_SI = "J joule N newton W watt V volt A ampere K kelvin Hz hertz Pa pascal mol mole eV electronvolt cal calorie"
_SYMBOLS = dict(zip(_SI.split()[::2], _SI.split()[1::2], strict=True))
_PREFIXES = {"": "", "k": "kilo", "m": "milli", "M": "mega", "G": "giga"}
_COUNTED = (
    "unit units point points way ways integer integers digit digits meal meals edge edges student students people person persons "
    "childrentickets multiples sue apple apples egg eggs book books item items step steps ticket tickets child children solution "
    "solutions value values"
)
_COUNTERS = frozenset(  # of Chinese: `34个`, and `34个苹果`
    "个個名人只隻本张張次种種条條页頁题題分点點步支枝棵瓶杯箱盒袋包件辆輛座家所位对對双雙组組套圈层層倍朵匹头頭颗顆粒根把台间間场場局轮輪班户排行"
)
_NO_NOUN = frozenset("或不非没未是半多余餘几幾错錯还還约")
_LETTERS = {
    "m": "metre",
    "s": "second",
    "g": "gram",
    "h": "hour",
    "L": "litre",
    "l": "litre",
}
CANONICAL = {name: unit for unit, names in _SAME.items() for name in (unit, *names.split())} | dict.fromkeys(
    _COUNTED.split(), ""
)
for _prefix, _many in _PREFIXES.items():
    for _symbol, _unit in _SYMBOLS.items():  # MN and mN may be products of names
        (CANONICAL if _prefix == "k" or len(_symbol) > 1 else _LETTERS)[_prefix + _symbol] = _many + _unit
        CANONICAL |= dict.fromkeys((_many + _unit, f"{_many}{_unit}s"), _many + _unit)

_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
_SCALES = (
    "hundred hundreds thousand thousands million millions billion billions trillion trillions dozen dozens lakh lakhs crore crores "
    "half halves third thirds fourth fourths fifth fifths sixth sixths eighth eighths ninth ninths tenth tenths "
    "hundredth hundredths thousandth thousandths quarter squared cubed factorial double twice triple "
    "mil mln mio thou lac lacs gross tens repeating recurring mille tausend millionen milliarden millones millón "
    "milhões mila milioni тыс тысяч тысяча тысячи млн миллион миллиона миллионов млрд ألف مليون 만 억 천 조"
)
_ABBREVIATED = "k K M B bn mn tn"  # beside a number; in a formula they are letters
_OPERATIONS = "plus minus divided multiplied mod modulo choose"
_DENIALS = (
    "or nor not no never wrong false incorrect mistaken mistake maybe perhaps possibly versus vs either neither isn ain unlikely "
    "invalid untrue impossible unless wait actually alternatively otherwise instead oops sorry correction excluded except else"
)
WORDS_OF_CHANGE = frozenset(" ".join((_NUMBERS, _SCALES, _OPERATIONS, _DENIALS)).split()) - {"one"}
_CHANGING = WORDS_OF_CHANGE | frozenset(_ABBREVIATED.split())
_NO_NUMBERS = _CHANGING - frozenset(_NUMBERS.split())
_WORD = re.compile(r"[^\W\d_]++")
COMMAND = re.compile(r"\\([A-Za-z]++)")  # of LaTeX

_HAN = "\u4e00-\u9fff"
_UNIT_WORD = rf"(?:(?:sq|cu)\.|[A-Za-z]++|[{_HAN}]++|\\?[%$]|[¢{CURRENCIES}])"
_POWER = r"(?:\^(?:\{ ?[23] ?\}|[23])|(?<=[A-Za-z])[23](?![0-9]))?"
_PER = r"(?: ?/ ?| ?\\cdot ?| per | )"
UNIT = re.compile(rf"{_UNIT_WORD}{_POWER}(?:{_PER}{_UNIT_WORD}{_POWER}){{0,4}}\.?")
_PARTS = re.compile(rf"([A-Za-z]++|[{_HAN}]++|[%¢{CURRENCIES}]|/)(?:\^?\{{? ?([23]))?")
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3", "平方": "2", "立方": "3"}
_PER_WORDS = frozenset({"/", "per", "a", "an"})
_SCALES_OF_DEGREES = frozenset({"C", "F", "Celsius", "Fahrenheit"})


def changes_a_number(text: str, *, by_numbers: bool = True) -> bool:
    """Return True if a word beside a number changes it, denies it, or names an alternative; one that is a number only if `by_numbers`."""
    changing = _CHANGING if by_numbers else _NO_NUMBERS
    return any(word in changing or word.lower() in changing for word in _WORD.findall(text))


@lru_cache(maxsize=1 << 12)
def unit_of(text: str, *, letters: bool) -> str | None:
    r"""Return the unit that a text names, `metre per second^2`; "" for what is counted; None if the text names no unit.

    letters: whether a single letter is a unit (`\text{m}`) rather than a variable (`m`); in `m/s` it is.
    """
    if "/(" in text:  # J/(mol K)
        text = text.removesuffix(")").replace("/(", "/")
    if UNIT.fullmatch(text) is None:
        return None
    letters = letters or "/" in text
    names, before = [], ""
    for word, power in _PARTS.findall(text):
        if word in _PER_WORDS or word in _SCALES_OF_DEGREES:
            names += ["per"] if word in _PER_WORDS else []
        elif word in _POWERS:
            before = _POWERS[word]
        elif (name := _canonical(word, letters)) is None:
            return None
        else:
            power, before = power or before or (_POWERS.get(word[:2], "") if name else ""), ""
            names.append(f"{name}^{power}" if name and power else name)
    if not any(name != "per" for name in names):
        return None
    return "" if "" in names else " ".join(names)


def _canonical(word: str, letters: bool) -> str | None:
    if letters and word in _LETTERS:
        return _LETTERS[word]
    unit = CANONICAL.get(word, CANONICAL.get(word.lower()))
    return _of_chinese(word) if unit is None and not word.isascii() else unit


def _of_chinese(word: str) -> str | None:
    """Return the unit that a Chinese word names: of area and volume, and "" for a counter with a noun after it."""
    noun = word[1:5]
    if (
        word[0] in _COUNTERS
        and word == word[0] + noun
        and _NO_NOUN.isdisjoint(noun)
        and not any(map(str.isnumeric, noun))
    ):
        return ""
    return CANONICAL.get(word[2:]) if word[:2] in _POWERS else None


# ---- units and currencies of a LaTeX answer ----

TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|textnormal|mbox|mathrm|mathbf|mathit|operatorname)\s*+\{([^{}]*+)\}"
)
_CURRENCY = re.compile(rf"([-+]?) *+(\\\$|[{CURRENCIES}]) *+([-+]?) *+(?=[0-9.\\])")
_DEGREES = re.compile(
    r" *\^ *(?:\{ ?\\circ ?\}|\\circ)(?= *+(?:\\text *\{ *)?[CF]?\}?\Z)|\\(?:text)?degree(?=\Z)|\\%(?=\Z)"
)
_UNIT_START = re.compile(rf"[A-Za-z{_HAN}%¢{CURRENCIES}]")
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
