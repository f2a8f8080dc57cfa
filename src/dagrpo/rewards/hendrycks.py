r"""The normalisation of answers of the MATH data set (Hendrycks et al. 2021, arXiv:2103.03874).

Two answers with the same normalised text are equal; of two others nothing is known. Unlike the published one it takes
`\text{...}` off, whatever is in it, and puts braces around shorthand in one pass.
"""

import re
from functools import lru_cache

from dagrpo.rewards.shorthand import written_out

_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])")
_REMOVED = re.compile(r"\\[!,; ]|\^\{?\\circ\}?|\\\$|\$|\\?%|\{,\}")
_UNIT = re.compile(r"(?<=[0-9}])\s*+\\(?:text|mbox|mathrm)\{\s++[^{}]*+\}(?:\^\{?[23]\}?)?\s*+\Z")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mbox|mathrm|mathbf)\{([^{}]*+)\}")
_NO_WHOLE = re.compile(r"(?<![0-9])\.(?=[0-9])")
_VARIABLE = re.compile(r"[A-Za-z]{1,2}=([^=]++)")
_SLASH = re.compile(r"(-?)([0-9]++)/([0-9]++)")
_SPACE = re.compile(r"(?<![0-9])\s++|\s++(?![0-9])")


@lru_cache(maxsize=1 << 14)
def normalise_truth(ground_truth: str) -> str:
    """`normalise` of a ground truth; one is compared with every completion of its group."""
    return normalise(ground_truth)


def normalise(answer: str) -> str:
    """The normalised text of an answer, in linear time."""
    text = answer.replace("\n", " ")
    text = _SIZES.sub("", _UNIT.sub("", text))
    text = _TEXT.sub(r"\1", _REMOVED.sub("", text))
    text = _SPACE.sub("", _NO_WHOLE.sub("0.", text)).strip().removesuffix(".")
    text = written_out(text)
    variable = _VARIABLE.fullmatch(text)
    text = variable.group(1) if variable else text
    slash = _SLASH.fullmatch(text)
    text = f"{slash.group(1)}\\frac{{{slash.group(2)}}}{{{slash.group(3)}}}" if slash else text
    return "\\frac{1}{2}" if text == "0.5" else text
