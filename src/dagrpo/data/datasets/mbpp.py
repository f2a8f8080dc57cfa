"""MBPP: short Python functions by a sentence and three assertions (Austin et al. 2021, arXiv:2108.07732).

mbpp shows the policy all assertions, as published. mbpp_one_test shows the first, which has the function's name, so that a program
that knows no more than the prompt does not pass.
"""

import json
from functools import partial

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

SOURCE = Source(
    repository="google-research-datasets/mbpp",
    configuration="full",
    revision="4bb6404fdc6cacfda99d4ac4205087b89d32030c",
    hub_splits={"train": "train", "test": "test", "validation": "validation"},
    mirror_files={"train": "mbpp/train.jsonl", "test": "mbpp/test.jsonl", "validation": "mbpp/validation.jsonl"},
    columns={"text": ("text",), "code": ("code",), "tests": ("test_list",), "setup": ("test_setup_code",)},
    optional=("setup",),
    rows={"train": 374, "validation": 90, "test": 500},
)
TASK = "You are an expert Python programmer, and here is your task: {} Your code should pass {}:\n\n{}"
INSTRUCTION = "Write the program in one block that begins with ```python and ends with ```."


def to_row(raw: RawRow, *, shown: int | None) -> Row:
    """Return one row whose prompt shows the first `shown` assertions, None: all. Tests are always all of them."""
    tests, setup = raw.texts("tests"), raw.fields["setup"] or ""
    which = "these tests" if shown is None else "tests such as this one"
    question = TASK.format(raw.text("text").strip(), which, "\n".join(tests[:shown]))
    return Row(
        prompt=chat(f"{question}\n\n{INSTRUCTION}"),
        question=question,
        answer=f"```python\n{raw.text('code').strip()}\n```",
        ground_truth=json.dumps({"test_list": tests, "test_setup_code": str(setup)}),
        ability="code",
    )


TASKS = (
    sourced_task("mbpp", SOURCE, partial(to_row, shown=None), verifier="unit_tests"),
    sourced_task("mbpp_one_test", SOURCE, partial(to_row, shown=1), verifier="unit_tests"),
)
