"""DAPO-Math-17k: competition problems whose answers are integers (Yu et al. 2025, arXiv:2503.14476).

The hub's file holds every row 100 times; a copy agrees in prompt, answer and id. Some problems occur under several ids,
a few of them with different answers: those are no copies. Ground truths are exact, as text, up to 2.2e22.
"""

from functools import partial

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

SOURCE = Source(
    repository="BytedTsinghua-SIA/DAPO-Math-17k",
    scored_as="math_dapo",
    revision="65877096c24ffa7abc4e4fa5edb95cf3413a5674",
    hub_splits={"train": "train"},
    mirror_files={"train": "dapo/dapo_math_17k.parquet"},
    columns={
        "prompt": ("prompt.0.content",),
        "ground_truth": ("reward_model.ground_truth",),
        "id": ("extra_info.index",),
    },
    rows={"train": 17_917},
    copies=("prompt", "ground_truth", "id"),
)
# What the data set writes round each problem.
OPENING = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
CLOSING = '\n\nRemember to put your answer on its own line after "Answer:".'


def to_row(raw: RawRow) -> Row:
    """Return one raw row, with the data set's own prompt. Raises UserError if the prompt does not ask for `Answer:`."""
    prompt, ground_truth = raw.text("prompt"), raw.text("ground_truth").strip()
    if not (prompt.startswith(OPENING) and prompt.endswith(CLOSING)):
        raise raw.error("prompt", "does not ask for the answer in the data set's own words")
    question = prompt.removeprefix(OPENING).removesuffix(CLOSING)
    if not question.strip():
        raise raw.error("prompt", "holds no problem")
    return Row(prompt=chat(prompt), question=question, answer=f"Answer: {ground_truth}", ground_truth=ground_truth)


_task = partial(sourced_task, source=SOURCE, to_row=to_row, verifier="math_dapo")

TASKS = (_task("dapo", prompt_tokens=153), _task("dapo_tool", tools=("code_interpreter",)))
