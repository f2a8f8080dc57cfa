"""AIME 2024 and 2025: 30 competition problems each, whose answers are integers from 0 to 999. For evaluation only.

The prompt asks for the final answer after `####`, so that GSM8K's reward reads it.
"""

import re
from functools import partial

from dagrpo.records import Example
from dagrpo.tasks.source import Row, Source
from dagrpo.tasks.task import Task, sourced_task

INSTRUCTION = 'Think step by step and give the final answer, an integer from 0 to 999, after "####".'
_ANSWER = re.compile(r"[0-9]{1,3}")

AIME_2024 = Source(
    repository="Maxwell-Jia/AIME_2024",
    configuration=None,
    revision="8d88b2876a82a080e2f172cc9b25d0d9d2cb4792",
    hub_splits={"test": "train"},  # the hub knows one split and calls it train
    mirror_files={"test": "aime/aime_2024.jsonl"},
    columns={"problem": ("Problem", "problem"), "answer": ("Answer", "answer")},
    rows={"test": 30},
)
AIME_2025 = Source(
    repository="yentinglin/aime_2025",
    configuration=None,
    revision="6f71d77b0b89b9dabe07ab466c51df33f514df7f",
    hub_splits={"test": "train"},
    mirror_files={"test": "aime/aime_2025.jsonl"},
    columns={"problem": ("problem",), "answer": ("answer",)},
    rows={"test": 30},
)


def to_example(task: str, source: Source, row: Row, split: str, index: int) -> Example:
    """One raw row in its prompt form. ValueError when its answer is not an integer from 0 to 999 (`025` is 25)."""
    problem, answer = row.fields["problem"], row.fields["answer"].strip()
    if not _ANSWER.fullmatch(answer):
        raise row.error("answer", f"is {answer[:40]!r}, not an integer from 0 to 999")
    ground_truth = str(int(answer))
    return Example(
        task=task,
        split=split,
        index=index,
        prompt=({"role": "user", "content": f"{problem}\n\n{INSTRUCTION}"},),
        question=problem,
        answer=f"#### {ground_truth}",
        ground_truth=ground_truth,
        data_source=source.repository,
    )


def _task(name: str, source: Source) -> Task:
    return sourced_task(name, source, partial(to_example, name, source))


TASK_2024 = _task("aime_2024", AIME_2024)
TASK_2025 = _task("aime_2025", AIME_2025)
