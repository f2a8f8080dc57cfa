"""verl, lm-evaluation-harness and math-verify give the verdicts that the scorers under their names give, on the texts of this
project's own tests and on random ones.

They need an environment of their own (requirements/objectives-test.lock), as test_objectives.py says; math-verify is asked in this one.
"""

import itertools
import os
import random
import sys
from collections.abc import Sequence

import pytest
from tests.oracles.asking import answers, require
from tests.rewards.test_readings import TEXTS
from tests.rewards.test_scorers import GOLDEN

from dagrpo.rewards.grading import Grader
from dagrpo.rewards.scorers import SCORERS

RANDOM_TEXTS = 3000
TRUTHS = (
    "18",
    "1000",
    "-3",
    "0.5",
    "\\frac{1}{2}",
    "\\frac{3}{4}",
    "x^2",
    "\\sqrt{2}",
    "\\text{east}",
    "(1,2)",
    "1,000",
    "50",
)
# Of which random texts consist: whatever a rule looks for, and whatever makes it fail.
PIECES = (
    "18", "1,000", "1000", "-3", ".5", "0.5", "1/2", "\\frac{1}{2}", "\\frac12", "\\dfrac 1 2", "\\frac", "\\frac1", "\\frac{3}4",
    "\\sqrt2", "\\sqrt{2}", "\\sqrt", "x^2", "x=", "k = ", "=", "\\text{ cm}", "\\text{east}", "\\text{ and}", "\\text{m}",
    "^\\circ", "^{\\circ}", "\\%", "%", "\\!", "\\\\", "\\left(", "\\right)", "(1,2)", "(1, 2)", "\\$", "$", " ", "\n", ".", ",", "..",
    "#### ", "####", "Answer: ", "answer:", "Answer", "\\boxed{", "\\boxed ", "\\boxed", "\\fbox{", "{", "}", "}", "}", "the ", "a ",
    "an ", "degrees", "dollars", "hours", "mbox{", "\\overline{", "\\textbf{", "[INVALID]", "50\\%", "So it is ", "-", "/",
)  # fmt: skip


def _random_texts() -> list[tuple[str, str]]:
    drawn = random.Random(0)
    return [
        ("".join(drawn.choices(PIECES, k=drawn.randint(1, 12))), drawn.choice(TRUTHS)) for _ in range(RANDOM_TEXTS)
    ] + [
        (f"{mark}{''.join(drawn.choices(PIECES, k=drawn.randint(1, 4)))}{end}", drawn.choice(TRUTHS))
        for mark, end in itertools.product(("#### ", "Answer: ", "\\boxed{", "so $"), ("", "}", ".", "$", "}$"))
        for _ in range(RANDOM_TEXTS // 20)
    ]


def _cases(name: str) -> list[tuple[str, str]]:
    own = [*((each[0], each[1]) for each in TEXTS), *((each[0], each[1]) for each in GOLDEN)]
    return own if name == "math_verify" else own + _random_texts()


def _ours(name: str, cases: Sequence[tuple[str, str]]) -> list[bool | None]:
    with Grader(10.0, 2) as grader:
        return grader.judge_as_published([text for text, _ in cases], [truth for _, truth in cases], SCORERS.get(name))


@pytest.mark.parametrize("name", SCORERS.own_names())
def test_a_scorer_has_the_verdicts_of_the_program_that_it_is_named_after(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "math_verify" and "DAGRPO_OBJECTIVES_PYTHON" in os.environ:
        monkeypatch.setenv("DAGRPO_OBJECTIVES_PYTHON", sys.executable)
    cases = _cases(name)
    asked = [{"scorer": name, "completion": text, "ground_truth": truth} for text, truth in cases]
    theirs = answers("scorers.py", {"cases": asked})
    require(name.partition("_")[0], theirs[0])
    verdicts = [answer["right"] for answer in theirs]
    different = [
        (case, his) for case, ours, his in zip(cases, _ours(name, cases), verdicts, strict=True) if ours != his
    ]
    assert not different, f"{len(different)} of {len(cases)}: {different[:5]}"
    assert 0 < sum(verdicts) < len(verdicts)
