"""verl, lm-evaluation-harness and math-verify give the verdicts that the scorers under their names give, on the texts of this
project's own tests and on random ones.

They need an environment of their own (requirements/objectives-test.lock), as test_objectives.py says; math-verify is asked in this one.
"""

import itertools
import json
import os
import random
import sys
from collections.abc import Sequence

import pytest
from packages.dagrpo_answers.tests.table import rows
from packages.dagrpo_answers.tests.test_scorers import GOLDEN, OF_CHOICES, OF_SEARCH
from packages.dagrpo_answers.tests.verifiers.test_ifeval import CASES, LANGUAGES
from tests.oracles.asking import answers, require

from dagrpo.rewards.grading import Grader
from dagrpo.rewards.verifiers import SCORERS
from dagrpo_answers.instructions.checks import CHECKS
from dagrpo_answers.verifier import Extractor
from dagrpo_answers.verifiers.ifeval import VERIFIER

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


CHOICE_PIECES = (
    "answer is ", "The answer is ", "the answer is (", "Answer: ", "answer:", "(A)", "(B)", "A", "B", "J", "C", ")", ".", "\n", " ", "**",
    "K", "I think ", "so ", "\\boxed{B}", "(", "(b)", ",",
)  # fmt: skip
SEARCH_PIECES = (
    "<answer>", "</answer>", "<answer>", "</answer>", "The ", "Paris", "paris", ", ", "France", "!", " ", "\n", "a ", "-5", "5", "U.S.",
)  # fmt: skip
SEARCH_TRUTHS = ('["Paris"]', '["Paris, France", "5"]', '["U.S."]', '["the a"]')


PLAIN = {"letter": "a", "keywords": ["sun"]}


def _drawn(pieces: Sequence[str], truths: Sequence[str]) -> list[tuple[str, str]]:
    drawn = random.Random(0)
    return [("".join(drawn.choices(pieces, k=drawn.randint(1, 9))), drawn.choice(truths)) for _ in range(RANDOM_TEXTS)]


def _cases(name: str) -> list[tuple[str, str]]:
    if name.startswith(("lm_eval_mmlu", "lm_eval_gpqa")):
        return [*((each[0], each[1]) for each in OF_CHOICES), *_drawn(CHOICE_PIECES, "ABCJ")]
    if name == "verl_search_r1":
        return [*((each[0], each[1]) for each in OF_SEARCH), *_drawn(SEARCH_PIECES, SEARCH_TRUTHS)]
    own = [*((row.text, row.ground_truth) for row in rows("readings.tsv")), *((each[0], each[1]) for each in GOLDEN)]
    return own if name == "math_verify" else own + _random_texts()


def _ours(name: str, cases: Sequence[tuple[str, str]]) -> list[bool | None]:
    with Grader(10.0, 2) as grader:
        return grader.judge_as_published([text for text, _ in cases], [truth for _, truth in cases], SCORERS.get(name))


@pytest.mark.parametrize("name", [name for name in SCORERS.own_names() if name != "mmlu_pro"])  # a script, no package
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


@pytest.mark.parametrize("how", ["strict", "loose"])
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_an_instruction_is_followed_where_lm_evals_ifeval_says_so(name: str, how: str) -> None:
    """All texts against the parameters of one case.

    Letters that are none, keywords as patterns and languages of short texts differ on purpose; words of scripts with vowel signs by
    NLTK's version.
    """
    parameters = next(own for instruction, own, *_ in CASES if instruction == name)
    parameters = parameters | {key: value for key, value in PLAIN.items() if key in parameters}
    truth = json.dumps([[name, parameters]])
    texts = [text for _, _, *both in CASES for text in both]
    texts = [*LANGUAGES.values()] if "language" in name or "english" in name else texts
    asked = [{"scorer": f"ifeval_{how}", "completion": text, "ground_truth": truth} for text in texts]
    theirs = answers("scorers.py", {"cases": asked})
    require("lm_eval", theirs[0])
    assert VERIFIER.parts is not None
    extractor: Extractor = "strict" if how == "strict" else "flexible"
    ours = [all(has for _, has in VERIFIER.parts(text, truth, extractor)) for text in texts]
    assert [text for text, own, their in zip(texts, ours, theirs, strict=True) if own != their["right"]] == []
