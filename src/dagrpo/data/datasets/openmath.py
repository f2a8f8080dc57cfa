"""OpenMathInstruct-2: synthetic problems in the manner of GSM8K and MATH (Toshniwal et al. 2024, arXiv:2410.01560).

Each problem occurs with several generated solutions, 13,972,791 rows in all: the first solution stands for all. The
answers are a language model's, by majority: some are wrong.
"""

from dataclasses import replace

from dagrpo.core.types import Row
from dagrpo.data.datasets import deepscaler
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task

SOURCE = Source(
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


def to_row(raw: RawRow) -> Row:
    """Return one raw row in its prompt form, with its solution if it has one."""
    row = deepscaler.to_row(raw)
    return replace(row, answer=raw.text("generated_solution")) if raw.fields["generated_solution"] else row


TASKS = (sourced_task("openmath", SOURCE, to_row, verifier="math"),)
