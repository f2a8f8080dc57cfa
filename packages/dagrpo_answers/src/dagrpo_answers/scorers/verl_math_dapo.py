"""verl's scorer of DAPO's mathematics.

The last `Answer:` in 300 characters, by Minerva's normalisation.
"""

import re

from dagrpo_answers.scorers import OF_MATH, Scorer

CHARACTERS = 300
CHARACTERS_OF_A_BOX = 100
NO_ANSWER = "[INVALID]"

_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_SUBSTITUTED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
# fmt: off
_REMOVED = (  # in this order: parts of words go, too
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points", "feet",
    "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students", "childrentickets",
    "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}", "\\mathrm{th}",
    "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots",
)
# fmt: on
_REWRITTEN = (
    (re.compile(r"(.*?)\$(.*?)\$(.*)"), r"$\2$"),
    (re.compile(r"\\text\{(.*?)\}"), r"\1"),
    (re.compile(r"\\textbf\{(.*?)\}"), r"\1"),
    (re.compile(r"\\overline\{(.*?)\}"), r"\1"),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)


def minerva(completion: str, ground_truth: str) -> bool:
    """Return True if the text after the last `Answer:` is the ground truth once both are normalised."""
    answer = _answer(completion)
    return answer is not None and normalised(answer) == normalised(ground_truth)


def minerva_or_box(completion: str, ground_truth: str) -> bool:
    r"""Return the verdict on `Answer:`; without one, whether the last `\boxed{...}` of 100 characters is exactly the ground truth."""
    answer = _answer(completion)
    if answer is not None and normalised(answer) != NO_ANSWER:
        return normalised(answer) == normalised(ground_truth)
    return _boxed(completion[-CHARACTERS:][-CHARACTERS_OF_A_BOX:]) == ground_truth


def _answer(completion: str) -> str | None:
    answers = _ANSWER.findall(completion[-CHARACTERS:])
    return answers[-1] if answers else None


def _boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`; None where it does not end."""
    _, mark, rest = text.rpartition("\\boxed{")
    depth = 1
    for place, character in enumerate(rest if mark else ""):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:place]
    return None


def normalised(answer: str) -> str:
    """Return the text after the last `=` by the rules of Minerva (arXiv:2206.14858, appendix D) as verl applies them."""
    answer = answer.rpartition("=")[2]
    for old, new in _SUBSTITUTED:
        answer = answer.replace(old, new)
    for expression in _REMOVED:
        answer = answer.replace(expression, "")
    for pattern, new in _REWRITTEN:
        answer = pattern.sub(new, answer)
    answer = answer.replace("$", "")
    digits = answer.replace(",", "")
    return (digits if digits.isdigit() else answer).strip()


SCORERS = (
    Scorer(
        name="verl_math_dapo",
        source="verl up to 0.8, utils/reward_score/math_dapo.py (Apache-2.0), as in DAPO, arXiv:2503.14476",
        right=minerva,
        verifiers=OF_MATH,
    ),
    Scorer(
        name="verl_math_dapo_or_box",
        source="verl 0.9.1, utils/reward_score/math_dapo.py (Apache-2.0)",
        right=minerva_or_box,
        verifiers=OF_MATH,
    ),
)
