"""A task and a reward of one's own: Roman numerals, with a prize for each right digit."""

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat
from dagrpo.rewards.components import Component, Weighted

SOURCE = Source(
    repository="roman_numerals",  # its name in records; the rows are files below data.mirror
    revision="",
    hub_splits={},
    mirror_files={"train": "train.jsonl", "test": "test.jsonl"},
    columns={"numeral": ("numeral",), "number": ("number",)},
)


def to_row(raw: RawRow) -> Row:
    """Return a row as the policy sees it, with the answer that fine-tuning learns and the verifier compares."""
    question, number = f"{raw.text('numeral')}=?", str(raw.integer("number"))
    return Row(prompt=chat(question), question=question, answer=f"#### {number}", ground_truth=number)


numerals = sourced_task("numerals", SOURCE, to_row, verifier="gsm8k")


class Config(Weighted):
    """The share of right digits."""


def right_digits(graded: GradedTrajectory, config: Config) -> float:
    """Return the share of the ground truth's digits that the answer has at their positions, 0 to 1."""
    answer, truth = graded.score.extracted or "", graded.trajectory.prompt.row.ground_truth
    if len(answer) != len(truth):
        return 0.0
    return sum(one == other for one, other in zip(answer, truth, strict=True)) / len(truth)


digits = Component(config=Config, function=right_digits, limits=lambda config: (0.0, 1.0))
