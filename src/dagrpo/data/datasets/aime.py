"""AIME 2024 and 2025: 30 competition problems each, for evaluation only.

Answers are integers from 0 to 999.
"""

import re
from functools import partial

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

INSTRUCTION = "Reason step by step, and put the final answer, an integer from 0 to 999, in \\boxed{}."
_ANSWER = re.compile(r"[0-9]{1,3}")

AIME_2024 = Source(
    repository="Maxwell-Jia/AIME_2024",
    scored_as="aime_2024",
    revision="8d88b2876a82a080e2f172cc9b25d0d9d2cb4792",
    hub_splits={"test": "train"},  # the hub knows one split and calls it train
    mirror_files={"test": "aime/aime_2024.jsonl"},
    columns={"problem": ("Problem", "problem"), "answer": ("Answer", "answer")},
    rows={"test": 30},
)
AIME_2025 = Source(
    repository="yentinglin/aime_2025",
    scored_as="aime_2025",
    revision="6f71d77b0b89b9dabe07ab466c51df33f514df7f",
    hub_splits={"test": "train"},
    mirror_files={"test": "aime/aime_2025.jsonl"},
    columns={"problem": ("problem",), "answer": ("answer",)},
    rows={"test": 30},
)


def to_row(raw: RawRow) -> Row:
    """Return one raw row in its prompt form.

    Raises UserError if its answer is not an integer from 0 to 999 (`025` is 25).
    """
    problem, answer = raw.text("problem"), raw.text("answer").strip()
    if not _ANSWER.fullmatch(answer):
        raise raw.error("answer", f"is {answer[:40]!r}, not an integer from 0 to 999")
    ground_truth = str(int(answer))
    prompt = chat(f"{problem}\n\n{INSTRUCTION}")
    return Row(prompt=prompt, question=problem, answer=f"\\boxed{{{ground_truth}}}", ground_truth=ground_truth)


_task = partial(sourced_task, to_row=to_row, verifier="math")
_tools = ("code_interpreter",)

TASKS = (
    _task("aime_2024", AIME_2024, prompt_tokens=141),
    _task("aime_2025", AIME_2025, prompt_tokens=208),
    _task("aime_2024_tool", AIME_2024, tools=_tools),
    _task("aime_2025_tool", AIME_2025, tools=_tools),
)
