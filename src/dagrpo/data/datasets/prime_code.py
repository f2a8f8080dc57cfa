"""Competition problems with tests in the form of verl's prime_code.

They are of Codeforces, TACO, APPS and CodeContests: the rows of Eurus-2-RL-Data (Cui et al. 2025, arXiv:2502.01456) whose ability is
code. Its validation split is the test split.
"""

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

SOURCE = Source(
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


def to_row(raw: RawRow) -> Row | None:
    """Return one row, None for a problem of mathematics. The problem itself asks for a block of ```python."""
    if raw.text("ability") != "code":
        return None
    problem = raw.text("problem")
    return Row(
        prompt=chat(problem), question=problem, answer="", ground_truth=raw.text("tests", LONGEST_TESTS), ability="code"
    )


TASKS = (sourced_task("prime_code", SOURCE, to_row, verifier="unit_tests"),)
