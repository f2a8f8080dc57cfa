"""HH-RLHF: conversations for a reward model (Bai et al. 2022, arXiv:2204.05862).

No answer is right or wrong: `answer` is the one that people preferred.
"""

import re

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task

SOURCE = Source(
    repository="Anthropic/hh-rlhf",
    revision="09be8c5bbc57cb3887f3a9732ad6aa7ec602a1fa",
    hub_splits={"train": "train", "test": "test"},
    mirror_files={"train": "hh_rlhf/train.jsonl", "test": "hh_rlhf/test.jsonl"},
    columns={"chosen": ("chosen",)},
    rows={"train": 160_800, "test": 8_552},
)
_TURN = re.compile(r"\n\n(Human|Assistant): ?")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def to_row(raw: RawRow) -> Row:
    """Return one row; turns of one side in a row are joined. Raises UserError for a text that is no conversation."""
    before, *parts = _TURN.split(raw.text("chosen"))
    turns: list[dict[str, str]] = []
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if turns and turns[-1]["role"] == _ROLES[name]:
            turns[-1]["content"] += f"\n\n{text.strip()}"
        else:
            turns.append({"role": _ROLES[name], "content": text.strip()})
    if before.strip() or not turns or turns[0]["role"] != "user":
        raise raw.error("chosen", "does not begin with `Human:`")
    answer = turns.pop()["content"] if turns[-1]["role"] == "assistant" else ""
    question = "\n\n".join(turn["content"] for turn in turns)
    return Row(prompt=tuple(turns), question=question, answer=answer, ground_truth="-", ability="dialogue")


TASKS = (sourced_task("hh_rlhf", SOURCE, to_row, verifier="none"),)
