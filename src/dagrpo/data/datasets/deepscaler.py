"""DeepScaleR: 40,315 competition problems from AIME, AMC, Omni-MATH and STILL (Luo et al. 2025)."""

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

SOURCE = Source(
    repository="agentica-org/DeepScaleR-Preview-Dataset",
    revision="b6ae8c60f5c1f2b594e2140b91c49c9ad0949e29",
    hub_splits={"train": "train"},
    mirror_files={"train": "deepscaler/train.json"},
    columns={"problem": ("problem",), "answer": ("answer",)},
    rows={"train": 40_315},
    untested=True,
)
INSTRUCTION = "Think step by step, and put the final answer in \\boxed{}."


def to_row(raw: RawRow) -> Row:
    """Return one raw row in its prompt form."""
    question, ground_truth = raw.text("problem"), raw.text("answer").strip()
    return Row(
        prompt=chat(f"{question}\n\n{INSTRUCTION}"),
        question=question,
        answer=f"\\boxed{{{ground_truth}}}",
        ground_truth=ground_truth,
    )


TASKS = (sourced_task("deepscaler", SOURCE, to_row, verifier="math"),)
