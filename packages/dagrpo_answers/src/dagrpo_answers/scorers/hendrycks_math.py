r"""MATH's own comparison of texts, on the last `\boxed{...}`."""

import re

from dagrpo_answers.scorers import OF_MATH, Scorer

_REPLACED = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)
_A_WHOLE = r"(-?[1-9][0-9]*|0)"
_SLASH = re.compile(f"{_A_WHOLE}/{_A_WHOLE}")


class _NotNormalised(ValueError):
    """A text at which the published normalisation fails: it is compared as it stands."""


def right(completion: str, ground_truth: str) -> bool:
    """Return True if there is a box whose content is the ground truth."""
    answer = boxed(completion)
    return answer is not None and equivalent(answer, ground_truth)


def boxed(text: str) -> str | None:
    r"""Return what follows the last `\boxed ` up to a `$`, else the content of the last `\boxed{...}`; None without one."""
    if "\\boxed " in text:
        return text.rpartition("\\boxed ")[2].partition("$")[0]
    start = text.rfind("\\boxed")
    depth = 0
    for place in range(max(start, 0), len(text) if start >= 0 else 0):
        depth += (text[place] == "{") - (text[place] == "}")
        if text[place] == "}" and depth == 0:
            box = text[start : place + 1]
            return box[len("\\boxed{") : -1] if box.startswith("\\boxed{") else None
    return None


def equivalent(answer: str, ground_truth: str) -> bool:
    """Return True if two texts are the same once normalised; as they stand, if one of them cannot be."""
    try:
        return normalised(answer) == normalised(ground_truth)
    except _NotNormalised:
        return answer == ground_truth


def normalised(text: str) -> str:
    r"""Return a text without spaces, units, degrees and percent, with braces around arguments; `a/b` as a fraction, `0.5` as a half."""
    for old, new in _REPLACED:
        text = text.replace(old, new)
    text = _without_unit(text).replace("\\\\%", "").replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    text = f"0{text}" if text[0] == "." else text
    sides = text.split("=")
    text = sides[1] if len(sides) == 2 and len(sides[0]) <= 2 else text  # x = 5
    text = _with_arguments(_roots(text).replace(" ", ""))
    text = "\\frac{1}{2}" if text == "0.5" else text
    slash = _SLASH.fullmatch(text)
    return f"\\frac{{{slash[1]}}}{{{slash[2]}}}" if slash else text


def _without_unit(text: str) -> str:
    parts = text.split("\\text{ ")
    if len(parts) > 2:
        raise _NotNormalised
    return parts[0]


def _roots(text: str) -> str:
    first, *others = text.split("\\sqrt")
    if not all(others):
        raise _NotNormalised
    return first + "".join(f"\\sqrt{part}" if part[0] == "{" else f"\\sqrt{{{part[0]}}}{part[1:]}" for part in others)


def _with_arguments(text: str) -> str:
    r"""Return a text with braces around the arguments of `\frac`, of one character each where they have none."""
    first, *others = text.split("\\frac")
    result = first
    for part in others:
        if not part:
            raise _NotNormalised
        if part[0] != "{" and len(part) < 2:
            return text
        if part[0] != "{":
            part = f"{{{part[0]}}}{part[1:]}" if part[1] == "{" else f"{{{part[0]}}}{{{part[1]}}}{part[2:]}"
        result += f"\\frac{part}"
    return result


SCORERS = (
    Scorer(
        name="hendrycks_math",
        source="MATH, modeling/math_equivalence.py (MIT); its box as verl 0.9.1, utils/reward_score/math_reward.py (Apache-2.0)",
        right=right,
        verifiers=OF_MATH,
    ),
)
