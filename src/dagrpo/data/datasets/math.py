r"""MATH: competition problems with worked solutions that end in `\boxed{...}` (Hendrycks et al. 2021, arXiv:2103.03874).

math_500 is the 500 of its test problems that Lightman et al. 2023 (arXiv:2305.20050) kept for evaluation.
"""

import re

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat
from dagrpo_answers.reading import last_boxed

MATH = Source(
    repository="DigitalLearningGmbH/MATH-lighteval",
    revision="0530c78699ea5e8eb5530600900e1f328b48acad",
    hub_splits={"train": "train", "test": "test"},
    mirror_files={"train": "math/train.jsonl", "test": "math/test.jsonl"},
    columns={"problem": ("problem",), "solution": ("solution",)},
    rows={"train": 7500, "test": 5000},
)
MATH_500 = Source(
    repository="HuggingFaceH4/MATH-500",
    revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    hub_splits={"test": "test"},
    mirror_files={"test": "math_500/test.jsonl"},
    columns={"problem": ("problem",), "solution": ("solution",), "answer": ("answer",)},
    rows={"test": 500},
)
INSTRUCTION = "Think step by step, and put the final answer in \\boxed{}."
_BARE = re.compile(r"\\(?:boxed|fbox)\s++([^\s${}]++)\s*+\$")  # TeX takes the one token of `\boxed 2` without braces


def math_problem(raw: RawRow) -> Row:
    r"""Return one row of MATH. Raises UserError if its solution does not end in `\boxed{...}`."""
    solution = raw.text("solution")
    bare = _BARE.findall(solution)
    ground_truth = last_boxed(solution) or (bare[-1] if bare else None)
    if ground_truth is None:
        raise raw.error("solution", "has no \\boxed{...} with an answer in it")
    return _problem(raw, solution, ground_truth)


def math_500_problem(raw: RawRow) -> Row:
    """Return one row of MATH-500, which has the answer in a separate column."""
    return _problem(raw, raw.text("solution"), raw.text("answer").strip())


def _problem(raw: RawRow, solution: str, ground_truth: str) -> Row:
    question = raw.text("problem")
    return Row(
        prompt=chat(f"{question}\n\n{INSTRUCTION}"), question=question, answer=solution, ground_truth=ground_truth
    )


TASKS = (
    sourced_task("math", MATH, math_problem, verifier="math"),
    sourced_task("math_500", MATH_500, math_500_problem, verifier="math"),
)
