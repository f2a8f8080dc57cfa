"""GSM8K: grade-school word problems whose solution ends in `#### n` (Cobbe et al. 2021, arXiv:2110.14168)."""

from dagrpo.records import Example
from dagrpo.rewards.gsm8k import extract
from dagrpo.tasks.source import Row, Source
from dagrpo.tasks.task import sourced_task

SOURCE = Source(
    repository="openai/gsm8k",
    configuration="main",
    revision="e53f048856ff4f594e959d75785d2c2d37b678ee",
    hub_splits={"train": "train", "test": "test"},
    mirror_files={"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"},
    columns={"question": ("question",), "answer": ("answer",)},
    rows={"train": 7473, "test": 1319},
)
INSTRUCTION = 'Think step by step and give the final answer after "####".'


def to_example(row: Row, split: str, index: int) -> Example:
    """One raw row in its prompt form. ValueError when its answer does not end in `#### n`, as the reward reads it."""
    question, answer = row.fields["question"], row.fields["answer"]
    ground_truth = extract(answer, "strict")
    if ground_truth is None:
        raise row.error("answer", "has no `####` followed by a number")
    return Example(
        task="gsm8k",
        split=split,
        index=index,
        prompt=({"role": "user", "content": f"{question} {INSTRUCTION}"},),
        question=question,
        answer=answer,
        ground_truth=ground_truth,
        data_source=SOURCE.repository,
    )


TASK = sourced_task("gsm8k", SOURCE, to_example)
