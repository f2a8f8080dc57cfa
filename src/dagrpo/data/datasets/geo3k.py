"""Geometry3K: school geometry about a figure (Lu et al. 2021, arXiv:2105.04165), as hiyouga/geometry3k poses it.

The text of a problem may be as short as `Find x`: what is asked is in the picture.
"""

from functools import partial

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

SOURCE = Source(
    repository="hiyouga/geometry3k",
    revision="fd21e533e1e50d0662a2bf7b223e60511bd5f8b7",
    hub_splits={"train": "train", "validation": "validation", "test": "test"},
    mirror_files={"train": "geo3k/train.jsonl", "validation": "geo3k/val.jsonl", "test": "geo3k/test.jsonl"},
    columns={"problem": ("problem",), "answer": ("answer",), "images": ("images", "image")},
    rows={"train": 2101, "validation": 300, "test": 601},
)
INSTRUCTION = (
    "First reason in an inner monologue between <think> and </think>, then give the final answer in \\boxed{}."
)
WITH_TOOL = (
    "You are an expert in geometry. Reason about the figure first. Then check your result with the "
    "answer_check tool, at least once before you settle, and correct it when it was wrong. "
    "Close with the final answer in \\boxed{}."
)


def to_row(raw: RawRow, system: str = "") -> Row:
    """Return one raw row in its prompt form, its figures as RGB files."""
    problem, answer = raw.text("problem"), raw.text("answer").strip()
    return Row(
        prompt=chat(f"{problem} {INSTRUCTION}", system),
        question=problem,
        answer=f"\\boxed{{{answer}}}",
        ground_truth=answer,
        images=raw.images("images"),
    )


_task = partial(sourced_task, source=SOURCE, verifier="geo3k", images=True)

TASKS = (
    _task("geo3k", to_row=to_row),
    _task("geo3k_tool", to_row=partial(to_row, system=WITH_TOOL), tools=("answer_check",)),
)
