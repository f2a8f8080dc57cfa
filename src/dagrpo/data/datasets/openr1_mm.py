"""Multimodal Open-R1: problems about pictures, from Math360K and Geo170K."""

from dagrpo.core.types import Row
from dagrpo.data.datasets.deepscaler import INSTRUCTION
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat
from dagrpo_answers.reading import answer_tag

SOURCE = Source(
    repository="lmms-lab/multimodal-open-r1-8k-verified",
    hub_splits={"train": "train"},
    mirror_files={"train": "openr1_mm/train.parquet"},
    columns={"problem": ("problem",), "solution": ("solution",), "image": ("image",)},
    untested=True,
)


def to_row(raw: RawRow) -> Row:
    """Return one raw row. Raises UserError if its solution has no `<answer>`."""
    question, solution = raw.text("problem"), raw.text("solution")
    answer = answer_tag(solution)
    if answer is None:
        raise raw.error("solution", "has no <answer>...</answer> with an answer in it")
    return Row(
        prompt=chat(f"<image>{question}\n\n{INSTRUCTION}"),
        question=question,
        answer=f"\\boxed{{{answer.strip()}}}",
        ground_truth=answer.strip(),
        images=raw.images("image"),
    )


TASKS = (sourced_task("openr1_mm", SOURCE, to_row, verifier="math", images=True),)
