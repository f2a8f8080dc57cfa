"""Search-R1's questions (Jin et al. 2025, arXiv:2503.09516).

Natural Questions and HotpotQA to train on, seven data sets to test.
A question is for a search over Wikipedia of 2018; `ability` is the data set that it comes from.
"""

import json

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

SOURCE = Source(
    repository="PeterJinGo/nq_hotpotqa_train",
    revision="b7d80abfee334a7a91cb377544f09180d58b34f6",
    hub_splits={"train": "train", "test": "test"},
    mirror_files={"train": "nq_hotpotqa/train.parquet", "test": "nq_hotpotqa/test.parquet"},
    columns={"question": ("question",), "answers": ("golden_answers",), "source": ("data_source",)},
    rows={"train": 169_615, "test": 51_713},
    untested=True,
)
INSTRUCTION = (
    "Reason each time you get new information. If you lack knowledge, search, as often as you want. When you need no more, give the "
    "answer alone in <answer></answer>, such as <answer>Beijing</answer>."
)


def to_row(raw: RawRow) -> Row:
    """Return one raw row; any of its answers is right."""
    question, answers = raw.text("question").strip(), raw.texts("answers")
    return Row(
        prompt=chat(f"{question}\n\n{INSTRUCTION}"),
        question=question,
        answer=f"<answer>{answers[0]}</answer>",
        ground_truth=json.dumps(answers, ensure_ascii=False),
        ability=raw.text("source"),
    )


TASKS = (sourced_task("nq_hotpotqa", SOURCE, to_row, verifier="exact_match", tools=("search",)),)
