"""HumanEval: 164 Python functions by their docstrings (Chen et al. 2021, arXiv:2107.03374). For evaluation only."""

import json

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

SOURCE = Source(
    repository="openai/openai_humaneval",
    revision="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
    hub_splits={"test": "test"},
    mirror_files={"test": "humaneval/test.jsonl"},
    columns={name: (name,) for name in ("prompt", "canonical_solution", "test", "entry_point")},
    rows={"test": 164},
)
INSTRUCTION = "Complete this Python function, and write the whole program in one block that begins with ```python and ends with ```."
SECONDS = 3.0  # the time limit of the published evaluation


def to_row(raw: RawRow) -> Row:
    """Return one row. Its tests are the published ones, as they are."""
    prompt = raw.text("prompt")
    tests = {"prompt": prompt, "test": raw.text("test"), "entry_point": raw.text("entry_point"), "seconds": SECONDS}
    return Row(
        prompt=chat(f"{INSTRUCTION}\n\n```python\n{prompt.rstrip()}\n```"),
        question=prompt,
        answer=f"```python\n{prompt}{raw.text('canonical_solution').rstrip()}\n```",
        ground_truth=json.dumps(tests),
        ability="code",
    )


TASKS = (sourced_task("humaneval", SOURCE, to_row, verifier="unit_tests"),)
