"""Outcomes of one evaluation, and each metric's value per problem.

Means and intervals are computed in `statistics`: `score` estimates each metric, `report` compares two evaluations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.core.trajectory import GREEDY
from dagrpo.evaluation.statistics import Floats, Integers, majority_correct, pass_at_k
from dagrpo.rollout.table import ROLLOUTS, required

SCORES = pa.schema(
    [
        required("task", pa.string()),
        required("problem_index", pa.int64()),
        required("sample_index", pa.int32()),
        pa.field("extracted", pa.string()),  # null: no answer to read
        pa.field(
            "vote", pa.string()
        ),  # the first answer to the problem that is the same to its verifier; null: as extracted, or answers have no votes
        required("verdict", pa.string()),  # right, wrong, missing or unverifiable
        required("correct", pa.bool_()),  # verdict is right
        # is the greedy answer without the problem's pictures right; null: not sampled
        pa.field("correct_without_pictures", pa.bool_()),
        required("truncated", pa.bool_()),
        required("completion_tokens", pa.int32()),
        required("completion", pa.string()),
        required("question", pa.string()),
        required("ground_truth", pa.string()),
        # as they were sampled
        *(ROLLOUTS.field(name) for name in ("turns", "stop_reason", "fault", "messages", "calls")),
    ]
)
BY_SCORER = "correct_by_"  # begins the column of a published scorer: bool; null: undecided, which counts as not right
WITHOUT_PICTURES = "greedy_without_pictures"  # what the text of the problems alone gives
PROPORTIONS = ("greedy", WITHOUT_PICTURES)  # metrics that are the share of problems with one right answer each


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """One task evaluated once: a greedy completion and k sampled ones for each problem, problems in ascending order."""

    task: str
    problems: Integers  # [problems], rows of test.parquet
    greedy: npt.NDArray[np.bool_]  # [problems]
    sampled: npt.NDArray[np.bool_]  # [problems, k]; k may be 0
    # [problems][k]; one text for all that are the same to the verifier; None: its answers are not compared
    answers: Sequence[Sequence[str | None]] | None
    blind: npt.NDArray[np.bool_] | None = None  # [problems], greedily without their pictures; None: not asked for

    @property
    def samples(self) -> int:
        """k, the number of sampled completions per problem."""
        return int(self.sampled.shape[1])


def outcomes(scores: pa.Table, *, votes: bool = True) -> Outcomes:
    """Arrange a scores table by problem. votes: whether the answers of the table's verifier are compared with each other."""
    names = ["task", "problem_index", "sample_index", "vote", "correct", "correct_without_pictures"]
    rows = scores.select(names).to_pylist()
    rows.sort(key=lambda row: (row["problem_index"], row["sample_index"]))
    problems = sorted({row["problem_index"] for row in rows})
    width = len(rows) // len(problems)
    expected = [(problem, sample) for problem in problems for sample in range(GREEDY, width - 1)]
    assert [(row["problem_index"], row["sample_index"]) for row in rows] == expected
    return _arranged(rows, problems, width, votes=votes)


def scorers_of(scores: pa.Table) -> list[str]:
    """Return the published scorers that have a column in a scores table, in its order."""
    return [name.removeprefix(BY_SCORER) for name in scores.column_names if name.startswith(BY_SCORER)]


def outcomes_by(scorer: str, scores: pa.Table) -> Outcomes:
    """Arrange a published scorer's verdicts by problem, without votes and pictures."""
    nothing = {
        "vote": pa.nulls(scores.num_rows, pa.string()),
        "correct_without_pictures": pa.nulls(scores.num_rows, pa.bool_()),
    }
    correct = pc.fill_null(scores.column(BY_SCORER + scorer), False)
    columns = {name: scores.column(name) for name in ("task", "problem_index", "sample_index")}
    return outcomes(pa.table({**columns, **nothing, "correct": correct}), votes=False)


def differing(scorer: str, scores: pa.Table) -> int:
    """Count the completions on which a published scorer differs from the main one."""
    correct = pc.fill_null(scores.column(BY_SCORER + scorer), False)
    return int(pc.sum(pc.not_equal(correct, scores.column("correct"))).as_py())


def _arranged(rows: list[dict[str, Any]], problems: list[int], width: int, *, votes: bool) -> Outcomes:
    correct = np.array([row["correct"] for row in rows], dtype=np.bool_).reshape(len(problems), width)
    answers = [row["vote"] for row in rows]
    blind = [row["correct_without_pictures"] for row in rows[::width]]
    return Outcomes(
        task=rows[0]["task"],
        problems=np.array(problems, dtype=np.int64),
        greedy=correct[:, 0],
        sampled=correct[:, 1:],
        answers=[answers[start + 1 : start + width] for start in range(0, len(rows), width)] if votes else None,
        blind=None if None in blind else np.array(blind, dtype=np.bool_),
    )


def pass_counts(samples: int) -> list[int]:
    """Return the values of k for pass@k: powers of two up to the number of samples, and that number."""
    powers = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
    return sorted({*powers, samples} - {0})


def values_per_problem(evaluated: Outcomes) -> dict[str, Floats]:
    """Return each metric's value on each problem, [problems], by names such as greedy, greedy_without_pictures, mean_at_4, pass_at_2."""
    values: dict[str, Floats] = {"greedy": evaluated.greedy.astype(np.float64)}
    if evaluated.blind is not None:
        values[WITHOUT_PICTURES] = evaluated.blind.astype(np.float64)
    k = evaluated.samples
    if k == 0:
        return values
    values[f"mean_at_{k}"] = evaluated.sampled.mean(axis=1)
    right = evaluated.sampled.sum(axis=1)
    for count in pass_counts(k):
        values[f"pass_at_{count}"] = pass_at_k(k, right, count)
    if evaluated.answers is not None:
        majority = [majority_correct(a, c) for a, c in zip(evaluated.answers, evaluated.sampled.tolist(), strict=True)]
        values[f"maj_at_{k}"] = np.array(majority)
    return values


def label_of(task: str, *, oracle: bool) -> str:
    """Return the label printed beside a score. It names the oracle, if any: such a score is not the policy's alone."""
    return f"{task} (oracle)" if oracle else task


def group_of(task: str, *, oracle: bool) -> str:
    """Return the group that a task's figures are recorded in, such as `eval/gsm8k`."""
    return f"eval/{task}_oracle" if oracle else f"eval/{task}"
