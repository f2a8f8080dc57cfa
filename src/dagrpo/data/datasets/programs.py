"""Programs with tests: HumanEval, MBPP, and verl's prime_code."""

import json
from functools import partial

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

# 164 Python functions by their docstrings (Chen et al. 2021, arXiv:2107.03374). For evaluation only.
HUMANEVAL = Source(
    repository="openai/openai_humaneval",
    revision="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
    hub_splits={"test": "test"},
    mirror_files={"test": "humaneval/test.jsonl"},
    columns={name: (name,) for name in ("prompt", "canonical_solution", "test", "entry_point")},
    rows={"test": 164},
)
HUMANEVAL_INSTRUCTION = (
    "Complete this Python function, and write the whole program in one block that begins with ```python "
    "and ends with ```."
)
HUMANEVAL_SECONDS = 3.0  # the time limit of the published evaluation
# Short Python functions by a sentence and three assertions (Austin et al. 2021, arXiv:2108.07732).
MBPP = Source(
    repository="google-research-datasets/mbpp",
    configuration="full",
    revision="4bb6404fdc6cacfda99d4ac4205087b89d32030c",
    hub_splits={"train": "train", "test": "test", "validation": "validation"},
    mirror_files={"train": "mbpp/train.jsonl", "test": "mbpp/test.jsonl", "validation": "mbpp/validation.jsonl"},
    columns={"text": ("text",), "code": ("code",), "tests": ("test_list",), "setup": ("test_setup_code",)},
    optional=("setup",),
    rows={"train": 374, "validation": 90, "test": 500},
)
MBPP_TASK = "You are an expert Python programmer, and here is your task: {} Your code should pass {}:\n\n{}"
MBPP_INSTRUCTION = "Write the program in one block that begins with ```python and ends with ```."
# Problems of Codeforces, TACO, APPS and CodeContests: the rows of Eurus-2-RL-Data (Cui et al. 2025, arXiv:2502.01456) whose ability is
# code. Its validation split is the test split.
PRIME_CODE = Source(
    repository="PRIME-RL/Eurus-2-RL-Data",
    revision="9776b13264b5aaa0b16495fcf086a0a8d86fd655",
    hub_splits={"train": "train", "test": "validation"},
    mirror_files={"train": "prime_code/train.parquet", "test": "prime_code/test.parquet"},
    columns={
        "problem": ("prompt.1.content", "prompt.0.content"),  # the system turn is for PRIME's own form of reasoning
        "tests": ("reward_model.ground_truth",),
        "ability": ("ability",),
    },
)
LONGEST_TESTS = 32 << 20  # characters


def humaneval_problem(raw: RawRow) -> Row:
    """Return one row of HumanEval. Its tests are the published ones, as they are."""
    prompt = raw.text("prompt")
    tests = {name: raw.text(name) for name in ("prompt", "test", "entry_point")}
    return Row(
        prompt=chat(f"{HUMANEVAL_INSTRUCTION}\n\n```python\n{prompt.rstrip()}\n```"),
        question=prompt,
        answer=f"```python\n{prompt}{raw.text('canonical_solution').rstrip()}\n```",
        ground_truth=json.dumps({**tests, "seconds": HUMANEVAL_SECONDS}),
        ability="code",
    )


def mbpp_problem(raw: RawRow, *, shown: int | None) -> Row:
    """Return one row of MBPP whose prompt shows the first `shown` assertions, None: all, as published. Tests are always all of them.

    The first has the function's name, so that a program that knows no more than a prompt with that one does not pass.
    """
    tests, setup = raw.texts("tests"), raw.fields["setup"] or ""
    which = "these tests" if shown is None else "tests such as this one"
    question = MBPP_TASK.format(raw.text("text").strip(), which, "\n".join(tests[:shown]))
    return Row(
        prompt=chat(f"{question}\n\n{MBPP_INSTRUCTION}"),
        question=question,
        answer=f"```python\n{raw.text('code').strip()}\n```",
        ground_truth=json.dumps({"test_list": tests, "test_setup_code": str(setup)}),
        ability="code",
    )


def prime_code_problem(raw: RawRow) -> Row | None:
    """Return one row, None for a problem of mathematics. The problem itself asks for a block of ```python."""
    if raw.text("ability") != "code":
        return None
    problem = raw.text("problem")
    return Row(
        prompt=chat(problem), question=problem, answer="", ground_truth=raw.text("tests", LONGEST_TESTS), ability="code"
    )


TASKS = (
    sourced_task("humaneval", HUMANEVAL, humaneval_problem, verifier="unit_tests"),
    sourced_task("mbpp", MBPP, partial(mbpp_problem, shown=None), verifier="unit_tests"),
    sourced_task("mbpp_one_test", MBPP, partial(mbpp_problem, shown=1), verifier="unit_tests"),
    sourced_task("prime_code", PRIME_CODE, prime_code_problem, verifier="unit_tests"),
)
