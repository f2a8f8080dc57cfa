"""Big-Math: 250,000 problems with verifiable answers (Albalak et al. 2025, arXiv:2502.17387).

A problem has the share of right answers that Llama-3.1-8B gave, where that was measured: its pass rate.
"""

from dataclasses import replace

from dagrpo.core.types import Row
from dagrpo.data.datasets import deepscaler
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task

SOURCE = Source(
    repository="SynthLabsAI/Big-Math-RL-Verified",
    revision="c75d2f117cddfecb6bd08756e61e508e59732b21",
    hub_splits={"train": "train"},
    mirror_files={"train": "bigmath/train.parquet"},
    columns={"problem": ("problem",), "answer": ("answer",), "pass_rate": ("llama8b_solve_rate",)},
    optional=("pass_rate",),
    rows={},
)


def to_row(raw: RawRow) -> Row:
    """Return one raw row in its prompt form, with its pass rate."""
    return replace(deepscaler.to_row(raw), pass_rate=raw.share("pass_rate"))


TASKS = (sourced_task("bigmath", SOURCE, to_row, verifier="math"),)
