"""Open-Reasoner-Zero: 57,000 problems of mathematics as conversations (Hu et al. 2025, arXiv:2503.24290)."""

from dagrpo.data.datasets.deepscaler import to_row
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task

SOURCE = Source(
    repository="Open-Reasoner-Zero/orz_math_57k_collection",
    hub_splits={"train": "train"},
    mirror_files={"train": "orz/train.json"},  # data/orz_math_57k_collected.json of the project on GitHub
    columns={"problem": ("0.value",), "answer": ("1.ground_truth.value",)},
    untested=True,
)

TASKS = (sourced_task("orz", SOURCE, to_row, verifier="math"),)
