r"""Names of quantities, as they stand on one side of an equation.

`x`, `a_{10}`, `\theta`, `f(x)`, `AB`, `m\angle ABC`, `\widehat{AB}`, `[ABC]`, `Area`, `\cos A`, `m + n`. An equation with a name on one
side and a value on the other states the value. Products, and other sums, are no names: `xy`, `2x`, `x + y`.
"""

import re

from dagrpo_answers.formulas import SHORT_WORDS
from dagrpo_answers.shorthand import written_out
from dagrpo_answers.words import COMMAND, TEXT, changes_a_number

_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|omega"
    r"|Delta|Omega|Gamma|Lambda|Sigma|Phi|Psi|ell)(?![A-Za-z])"
)
_MARKS = r"(?: ?_ ?(?:\{(?:[^{}]|\{[^{}]*+\})*+\}|[A-Za-z0-9]|\\[A-Za-z]++)|'|\^\{ ?\\prime ?\})*+"
_LETTER = rf"(?:[A-Za-z]|{_GREEK}){_MARKS}"
_POINTS = rf"[A-Z](?: ?'? ?[A-Z]){{1,7}}+{_MARKS}"
_PLAIN = rf"(?:{_POINTS}|{_LETTER})"
_OVER = (
    r"\\(?:overline|widehat|hat|widetilde|tilde|bar|vec|overrightarrow|overleftrightarrow|overparen|wideparen|overarc|arc"
    r"|overset ?\{ ?\\(?:frown|smallfrown) ?\}|stackrel ?\{ ?\\(?:frown|smallfrown) ?\}|mathbf|mathbb|mathcal|mathsf|boldsymbol)"
)
_FIGURE = r"\\(?:angle|measuredangle|triangle|Delta|odot|parallel|square)(?![A-Za-z])"
_OBJECT = rf"(?:m ?(?=\\))?(?:(?:{_FIGURE} ?)?(?:{_OVER} ?\{{ ?{_PLAIN} ?\}}|{_PLAIN})|{_FIGURE} ?[1-9])"
_ARGUMENT = rf"(?:[-+]? ?[0-9.]++|{_OBJECT}|[A-Za-z ]++)"
_ARGUMENTS = rf"\( ?{_ARGUMENT}(?: ?(?:[,|;=+-]|\\(?:mid|cap|cup|le|ge)(?![A-Za-z])) ?{_ARGUMENT})*+ ?\)"
_FUNCTION = (
    rf"(?:\\math(?:bb|bf|cal|rm) ?\{{ ?[A-Z] ?\}}|[fghFGHPQTVELDSR]{_MARKS}"
    r"|\\(?:phi|varphi|psi|Phi|Psi)(?![A-Za-z])|[A-Z]?[a-z]{3,}+)"
)
_INVERSE = r"(?: ?\^ ?\{ ?-1 ?\})?"
_ANGLE = rf"(?:{_GREEK}|\\angle(?![A-Za-z]) ?{_PLAIN}|[A-Z])"
_NAME = re.compile(
    rf"{_OBJECT}"
    rf"|{_FUNCTION} ?{_INVERSE} ?(?:{_ARGUMENTS}|\[ ?[A-Za-z] ?\])"
    rf"|[a-z]{_MARKS} ?\( ?[xtn] ?\)|[pq] ?\( ?-?[0-9]++ ?\)"
    rf"|\[ ?[A-Z]{{2,8}} ?\]|\| ?(?:[A-Z]{{1,2}}|z|w|\\vec ?\{{ ?[A-Za-z] ?\}}) ?\|"
    rf"|\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z]) ?(?:\( ?{_ANGLE} ?\)|{_ANGLE})"
    r"|(?!.*(?P<twice>[a-z]).*(?P=twice))[a-df-hj-w](?: ?\+ ?[a-df-hj-w]){1,4}+"
    rf"|\( ?{_LETTER}(?: ?, ?{_LETTER}){{1,4}} ?\)"
    r"|\\frac ?\{ ?d ?[a-z]? ?\} ?\{ ?d ?[a-z] ?\}|d[a-z] ?/ ?d[a-z]"
)
_OF_A_FUNCTION = re.compile(r"y|[A-Za-z]\([a-z]\)")
_DERIVATIVE = re.compile(r"\\frac\{d([a-z])\}\{d[a-z]\}|d([a-z])/d[a-z]")
_PRIME = re.compile(r"(?<=(?<![A-Za-z])[A-Za-z])'++")
_AT_A_POINT = re.compile(r"[^()]+\(.*\)|\\(?:sin|cos|tan|cot|sec|csc)(?![a-z]).*")
_ANGLE_NAME = re.compile(r"m?\\(?:measured)?angle(.*)")
_WORDS = re.compile(r"[A-Za-z](?:[A-Za-z ,.'-]|\\(?:triangle|angle)(?![A-Za-z]))*+")
_LETTERS = re.compile(r"[A-Za-z]++")
_SHORT_NAMES = frozenset({"sum", "max", "min", "age", "ans"})
_OF_DOUBT = SHORT_WORDS - {"of", "in", "the", "an", "to", "for", "at", "by", "on", "all"}
_COMMAND_ALONE = re.compile(r"\{ *\\([A-Za-z]++) *\}")
_LONGEST = 200  # characters


def is_name(text: str) -> bool:
    """Return True if a side of an equation is the name of a quantity, without words of doubt."""
    if len(text) > _LONGEST:
        return False
    plain = " ".join(TEXT.sub(r" \1 ", text).replace("$", " ").split())
    words = _LETTERS.findall(COMMAND.sub(" ", plain))
    if _WORDS.fullmatch(plain) and any(map(_is_a_noun, words)):
        return not changes_a_number(plain) and _OF_DOUBT.isdisjoint(word.lower() for word in words)
    return _NAME.fullmatch(text) is not None or _NAME.fullmatch(plain) is not None


def _is_a_noun(word: str) -> bool:
    """Return True for a word that is no product of letters: `Area`, `cost`; not `xy`."""
    return len(word) > 3 or (len(word) > 1 and word[0].isupper() and not word.isupper()) or word in _SHORT_NAMES


def spelling(name: str) -> str:
    """Return a name in one spelling: `x_1` is `x_{1}`, and `x_{\\text{max}}` is `x_{max}`."""
    plain = _COMMAND_ALONE.sub(r"{\1}", TEXT.sub(r"\1", written_out(name)))
    return "".join(plain.split())


def same_quantity(name: str, other: str) -> bool:
    """Return True if two names are one, or both are of any function: `y`, `f(x)`."""
    return name == other or bool(_OF_A_FUNCTION.fullmatch(name) and _OF_A_FUNCTION.fullmatch(other))


def different_quantities(name: str, other: str) -> bool:
    r"""Return True for names that cannot be of one quantity: `f(2)` and `f(3)`, `\sin A` and `\cos A`, two angles, `y` and `y'`.

    Other names may be: `x` and `n`.
    """
    if not name or not other or name == other:
        return False
    if "+" in name + other:
        return sorted(name) != sorted(other)
    name, other = (_DERIVATIVE.sub(r"\1\2'", text).replace("^{\\prime}", "'") for text in (name, other))
    plain, plain_other = _PRIME.sub("", name), _PRIME.sub("", other)
    if same_quantity(plain, plain_other):
        return name.count("'") != other.count("'")
    angle, other_angle = _ANGLE_NAME.fullmatch(name), _ANGLE_NAME.fullmatch(other)
    if angle and other_angle:
        return not _may_be_one_angle(angle.group(1), other_angle.group(1))
    both = _AT_A_POINT.fullmatch(name) and _AT_A_POINT.fullmatch(other)
    return bool(both) and _without_brackets(name) != _without_brackets(other)


def _may_be_one_angle(points: str, others: str) -> bool:
    """Return True for the same points from either end, and for an angle's vertex alone: `ABC`, `CBA`, `B`."""
    if len(points) == len(others) == 3:
        return points in (others, others[::-1])
    return points[len(points) // 2 :][:1] == others[len(others) // 2 :][:1]


def _without_brackets(name: str) -> str:
    return re.sub(r"[()]|\\angle(?![a-z])", "", name)
