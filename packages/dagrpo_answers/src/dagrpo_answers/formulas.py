"""Formulas that math-verify reads completely and correctly.

A closed list of commands and characters. Any other text is words (forms.py): numbers side by side, `or`, a relation with nothing
before it, a command that is not listed, arithmetic that rational.py cannot read.
"""

import re

from dagrpo_answers.numbers import NUMERAL
from dagrpo_answers.words import COMMAND, WORDS_OF_CHANGE

_COMMAND_NAMES = (
    "frac sqrt pi cdot times div pm mp log ln lg exp sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh binom infty cup "
    "cap setminus in emptyset varnothing le leq ge geq lt gt begin end alpha beta gamma delta epsilon varepsilon zeta eta theta "
    "iota kappa lambda mu nu xi rho sigma tau phi varphi chi psi omega Delta Omega Gamma Lambda Sigma Phi Psi mathbb mathcal "
    "lfloor rfloor lceil rceil sum prod int lim to lvert rvert vert overline bar vec hat angle triangle circ degree max min gcd "
    "lcm mod pmod bmod mid ldots cdots dots det ast"
)
_FUNCTION_NAMES = "sin cos tan cot sec csc log ln exp arcsin arccos arctan sinh cosh tanh max min gcd lcm mod det lim"
_SHORT = "or and not no is if to the are so an of in on at by as it be we he was yes nor but you can all any who for has had nan inf tba"
_COMMANDS, _FUNCTIONS, SHORT_WORDS = (frozenset(names.split()) for names in (_COMMAND_NAMES, _FUNCTION_NAMES, _SHORT))
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[A-Za-z]{1,12}\*?\}|\\mathbb\{[A-Z]\}|\\mathcal\{[A-Z]\}")
_BASE = re.compile(r"\\log *+_\{[^{}]*+\}")
_BASE_OF_DIGITS = re.compile(r"[0-9] ?_")
_LETTERS = re.compile(r"[A-Za-z]++")
_ALLOWED = re.compile(r"[A-Za-z0-9 +\-*/^_=<>().,;|!\[\]{}&\\]*+")  # no prime: math-verify does not see it
_BARE_END = re.compile(
    r"(?:[-+*/^_=<>,;(\[{&]|\\(?:cdot|times|div|pm|le|leq|ge|geq|in|cup|cap|ast|ldots|cdots|dots))\Z"
    r"|\A(?:[!*/^_<>,;)\]}&]|\\(?:le|leq|ge|geq|in|ldots|cdots|dots)(?![A-Za-z]))"
)
_SEVERAL = re.compile(r"[0-9] ++[0-9.]|\} ++[0-9]")
_REPEATED = re.compile(r"\\(?:overline|bar|dot|vec|hat) *+\{ *+[-0-9]")
_WORDS = re.compile(r"[A-Za-z ,.;']++")
_PRODUCT = re.compile(  # of two letters that are a word elsewhere: ax + by, at^2
    r"(?:(?<=[-+*/^=({}0-9])|(?<=[-+*/=] )|(?<![\s\S]))(?:an|as|at|be|by)(?= ?[-+*/^_=)(}]|(?<=[-+*/=0-9]..)\Z|(?<=[-+*/=] ..)\Z)"
)
_FRACTIONAL_POWER = re.compile(  # a root
    r"\^\{ *-? *(?:[0-9]++ */ *[0-9]++|\\frac *\{[0-9]++\} *\{[0-9]++\}|[0-9]*+\.[0-9]++) *\}"
)
_ARITHMETIC = re.compile(r"[0-9 .,+\-*/^{}()]*+")
_ITS_COMMANDS = re.compile(r"\\(?:frac|cdot|times|div|binom)(?![A-Za-z])")


def is_formula(latex: str) -> bool:
    """Return True if math-verify can be trusted to read all of `latex`."""
    plain = _BASE.sub(r"\\log", _ENVIRONMENT.sub("x", _FRACTIONAL_POWER.sub("^{x}", latex)))
    if not latex or "\\text" in plain or _ALLOWED.fullmatch(plain) is None or _BARE_END.search(plain):
        return False
    if not commands_are_known(plain) or _REPEATED.search(plain):
        return False
    if "\\begin" not in latex and (_SEVERAL.search(plain) or "\\\\" in plain or "&" in plain):
        return False
    if plain.count("|") % 2 or _BASE_OF_DIGITS.search(plain):
        return False
    letters = _LETTERS.findall(_PRODUCT.sub("x", COMMAND.sub(" ", plain)))
    if any(_is_a_word(run) for run in letters):
        return False
    only_letters = len("".join(letters)) > 1 and _WORDS.fullmatch(plain) is not None
    return not only_letters and _ARITHMETIC.fullmatch(_ITS_COMMANDS.sub("", plain)) is None


def commands_are_known(latex: str) -> bool:
    """Return True if math-verify knows all commands of `latex`."""
    return all(name in _COMMANDS for name in COMMAND.findall(latex))


def _is_a_word(letters: str) -> bool:
    """Return True if letters side by side are a word rather than a product of names."""
    return letters not in _FUNCTIONS and (
        len(letters) > 3 or letters.lower() in SHORT_WORDS or letters in WORDS_OF_CHANGE
    )


def without_separators(latex: str) -> str:
    """Return a formula with its numbers in plain digits; one with brackets stays, as there a comma may divide values."""
    return latex if re.search(r"[(\[]|\\\{", latex) else NUMERAL.sub(_plain, latex)


def _plain(numeral: re.Match[str]) -> str:
    return numeral.group().replace(",", "").replace(" ", "") if numeral.group("grouped") else numeral.group()
