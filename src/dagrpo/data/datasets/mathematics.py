"""Problems of mathematics whose answer stands in a box.

MATH, MATH-500, DeepScaleR, Open-Reasoner-Zero, Big-Math, OpenMathInstruct-2, and Multimodal Open-R1 with pictures.
"""

import re
from dataclasses import replace

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat
from dagrpo_answers.reading import answer_tag, last_boxed

INSTRUCTION = "Think step by step, and put the final answer in \\boxed{}."
_BARE = re.compile(r"\\(?:boxed|fbox)\s++([^\s${}]++)\s*+\$")  # TeX takes the one token of `\boxed 2` without braces

# Competition problems with worked solutions that end in `\boxed{...}` (Hendrycks et al. 2021, arXiv:2103.03874).
MATH = Source(
    repository="DigitalLearningGmbH/MATH-lighteval",
    revision="0530c78699ea5e8eb5530600900e1f328b48acad",
    hub_splits={"train": "train", "test": "test"},
    mirror_files={"train": "math/train.jsonl", "test": "math/test.jsonl"},
    columns={"problem": ("problem",), "solution": ("solution",)},
    rows={"train": 7500, "test": 5000},
)
# The 500 of its test problems that Lightman et al. 2023 (arXiv:2305.20050) kept for evaluation.
MATH_500 = Source(
    repository="HuggingFaceH4/MATH-500",
    revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    hub_splits={"test": "test"},
    mirror_files={"test": "math_500/test.jsonl"},
    columns={"problem": ("problem",), "solution": ("solution",), "answer": ("answer",)},
    rows={"test": 500},
)
# 40,315 competition problems from AIME, AMC, Omni-MATH and STILL (Luo et al. 2025).
DEEPSCALER = Source(
    repository="agentica-org/DeepScaleR-Preview-Dataset",
    revision="b6ae8c60f5c1f2b594e2140b91c49c9ad0949e29",
    hub_splits={"train": "train"},
    mirror_files={"train": "deepscaler/train.json"},
    columns={"problem": ("problem",), "answer": ("answer",)},
    rows={"train": 40_315},
    untested=True,
)
# Open-Reasoner-Zero: 57,000 problems as conversations (Hu et al. 2025, arXiv:2503.24290).
ORZ = Source(
    repository="Open-Reasoner-Zero/orz_math_57k_collection",
    hub_splits={"train": "train"},
    mirror_files={"train": "orz/train.json"},  # data/orz_math_57k_collected.json of the project on GitHub
    columns={"problem": ("0.value",), "answer": ("1.ground_truth.value",)},
    untested=True,
)
# 250,000 problems with verifiable answers (Albalak et al. 2025, arXiv:2502.17387), each with the share of right answers that Llama-3.1-8B
# gave, where that was measured: its pass rate.
BIGMATH = Source(
    repository="SynthLabsAI/Big-Math-RL-Verified",
    revision="c75d2f117cddfecb6bd08756e61e508e59732b21",
    hub_splits={"train": "train"},
    mirror_files={"train": "bigmath/train.parquet"},
    columns={"problem": ("problem",), "answer": ("answer",), "pass_rate": ("llama8b_solve_rate",)},
    optional=("pass_rate",),
    rows={},
)
# OpenMathInstruct-2: synthetic problems in the manner of GSM8K and MATH (Toshniwal et al. 2024, arXiv:2410.01560). Each occurs with several
# generated solutions, 13,972,791 rows in all: the first solution stands for all. Answers are a model's, by majority: some are wrong.
OPENMATH = Source(
    repository="nvidia/OpenMathInstruct-2",
    revision="469216e3f46f4dacf476b382e192485ea51a143e",
    hub_splits={"train": "train"},
    mirror_files={"train": "openmath/train.parquet"},
    columns={
        "problem": ("problem",),
        "answer": ("expected_answer",),
        "generated_solution": ("generated_solution",),
    },
    optional=("generated_solution",),
    rows={},
    copies=("problem", "answer"),
    sampled=True,
)
# Multimodal Open-R1: problems about pictures, from Math360K and Geo170K.
OPENR1_MM = Source(
    repository="lmms-lab/multimodal-open-r1-8k-verified",
    hub_splits={"train": "train"},
    mirror_files={"train": "openr1_mm/train.parquet"},
    columns={"problem": ("problem",), "solution": ("solution",), "image": ("image",)},
    untested=True,
)


def _problem(question: str, ground_truth: str, solution: str = "") -> Row:
    """Return a row whose answer is the solution, else the ground truth in a box."""
    return Row(
        prompt=chat(f"{question}\n\n{INSTRUCTION}"),
        question=question,
        answer=solution or f"\\boxed{{{ground_truth}}}",
        ground_truth=ground_truth,
    )


def math_problem(raw: RawRow) -> Row:
    r"""Return one row of MATH. Raises UserError if its solution does not end in `\boxed{...}`."""
    solution = raw.text("solution")
    bare = _BARE.findall(solution)
    ground_truth = last_boxed(solution) or (bare[-1] if bare else None)
    if ground_truth is None:
        raise raw.error("solution", "has no \\boxed{...} with an answer in it")
    return _problem(raw.text("problem"), ground_truth, solution)


def math_500_problem(raw: RawRow) -> Row:
    """Return one row of MATH-500, which has the answer in a separate column."""
    return _problem(raw.text("problem"), raw.text("answer").strip(), raw.text("solution"))


def to_row(raw: RawRow) -> Row:
    """Return one raw row with a problem and its answer in its prompt form."""
    return _problem(raw.text("problem"), raw.text("answer").strip())


def rated_row(raw: RawRow) -> Row:
    """Return one row of Big-Math, with its pass rate."""
    return replace(to_row(raw), pass_rate=raw.share("pass_rate"))


def solved_row(raw: RawRow) -> Row:
    """Return one row of OpenMathInstruct-2, with its solution if it has one."""
    solution = raw.text("generated_solution") if raw.fields["generated_solution"] else ""
    return _problem(raw.text("problem"), raw.text("answer").strip(), solution)


def pictured_row(raw: RawRow) -> Row:
    """Return one row with a picture. Raises UserError if its solution has no `<answer>`."""
    question, answer = raw.text("problem"), answer_tag(raw.text("solution"))
    if answer is None:
        raise raw.error("solution", "has no <answer>...</answer> with an answer in it")
    row = _problem(f"<image>{question}", answer.strip())
    return replace(row, question=question, images=raw.images("image"))


TASKS = (
    sourced_task("math", MATH, math_problem, verifier="math"),
    sourced_task("math_500", MATH_500, math_500_problem, verifier="math"),
    sourced_task("deepscaler", DEEPSCALER, to_row, verifier="math"),
    sourced_task("orz", ORZ, to_row, verifier="math"),
    sourced_task("bigmath", BIGMATH, rated_row, verifier="math"),
    sourced_task("openmath", OPENMATH, solved_row, verifier="math"),
    sourced_task("openr1_mm", OPENR1_MM, pictured_row, verifier="math", images=True),
)
