r"""The normalisation of short answers of Minerva (arXiv:2206.14858, appendix D), which DAPO's reward compares by.

Units, articles and dressing go (`$34$ degrees`, `x=34`, `\text{34}`), shorthand gets its braces (`\frac12`). Two answers
with the same normalised text are equal; of two others nothing is known. Unlike the published list, a space between two
digits stays (`3 4` is not 34), unit words are removed as whole words only, an inequality is not cut at its
`=`, and of several formulas none is taken for the answer.
"""

import re
from functools import lru_cache

from dagrpo.rewards.shorthand import written_out

_UNITS = (
    "square|ways|integers|dollars|mph|inches|hours|km|units|sue|points|feet|minutes|digits|cents|degrees|cm|gm|pounds|"
    "meters|meals|edges|students|childrentickets|multiples"
)
_EQUALS = re.compile(r"(?<![<>!=\\])=(?!=)")
_ARTICLE = re.compile(r"\ban? ")
_SPACE = re.compile(r"(?<![0-9])\s++|\s++(?![0-9])|\\ ")
_REMOVED = re.compile(
    rf"\\text\{{(?:m|s|\.|\n|\ns)?\}}(?:\^[23])?|(?<![A-Za-z\\])(?:{_UNITS})++(?![A-Za-z])|\\mathrm\{{th\}}|\^\\circ|"
    r"\^\{\\circ\}|\\[;!,]|\{,\}|\"|\\l?dots"
)
_WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|overline|boxed)\{([^{}]*+)\}")
_FORMULA = re.compile(r"\$([^$]*+)\$")


@lru_cache(maxsize=1 << 14)
def normalise_truth(ground_truth: str) -> str:
    """`normalise` of a ground truth; one is compared with every completion of its group."""
    return normalise(ground_truth)


def normalise(answer: str) -> str:
    """The normalised text of an answer, in linear time."""
    text = _EQUALS.split(answer)[-1]
    text = _ARTICLE.sub("", text).replace(".$", "$").replace("\\$", "")
    text = _SPACE.sub("", text).replace("mbox", "text").replace(",\\text{and}", ",").replace("\\text{and}", ",")
    text = _REMOVED.sub("", text)
    formulas = _FORMULA.findall(text)
    text = formulas[0] if len(formulas) == 1 else text
    return written_out(_WRAPPER.sub(r"\1", text)).replace("$", "").strip().removesuffix(".")
