"""Stage `difficulty`: the starting policy's pass rate on each train problem.

One rating per experiment and task, by the first seed's policy, so that all seeds choose from the same problems. With no samples
the split passes through: the DAG has one shape for every experiment.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from dagrpo.core.trajectory import GradedTrajectory, Trajectory
from dagrpo.core.types import Row
from dagrpo.data.schema import from_table, to_table
from dagrpo.evaluation.pass_rates import PASS_RATES
from dagrpo.evaluation.sampling import Checkpoint, SplitAttempts, attempt_split
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader, grade
from dagrpo.utils.tables import read_parquet, write_parquet
from dagrpo_answers.verifier import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """Counts of one problem's completions."""

    right: int
    unverifiable: int
    samples: int

    @property
    def pass_rate(self) -> float | None:
        """The share of right answers among the verifiable ones; None without any."""
        verified = self.samples - self.unverifiable
        return self.right / verified if verified else None


def rate(
    attempts: SplitAttempts, checkpoint: Checkpoint, reward: Reward, rated: Path, pass_rates: Path
) -> list[Rating]:
    """Attempt every problem of the split, grade, and write the split with its column pass_rate, and the ratings."""
    rows = from_table(read_parquet(attempts.split))
    ratings = ratings_of(attempt_split(attempts, checkpoint), len(rows), reward)
    write_parquet(pass_rates, _table(rows, ratings))
    with_rates = [replace(e, pass_rate=r.pass_rate) for e, r in zip(rows, ratings, strict=True)]
    write_parquet(rated, to_table(with_rates))
    return ratings


def ratings_of(trajectories: Sequence[Trajectory], prompts: int, reward: Reward) -> list[Rating]:
    """Return one rating per problem, in the order of the split, by verifier, extractor and time limit of `reward`."""
    with Grader(reward.verify_seconds, unit_tests=reward.unit_tests) as grader:
        graded = grade(trajectories, reward, grader)
    return _counted(graded, prompts)


def _counted(graded: Sequence[GradedTrajectory], prompts: int) -> list[Rating]:
    verdicts: list[Counter[Verdict]] = [Counter() for _ in range(prompts)]
    for each in graded:
        verdicts[each.trajectory.prompt.index][each.score.verdict] += 1
    return [
        Rating(right=count["right"], unverifiable=count["unverifiable"], samples=count.total()) for count in verdicts
    ]


def metrics_to_log(ratings: Sequence[Rating]) -> dict[str, float]:
    """Return the metrics of a split's ratings."""
    rates = [rating.pass_rate for rating in ratings if rating.pass_rate is not None]
    return {
        "mean_pass_rate": sum(rates) / len(rates) if rates else 0.0,
        "never_solved_fraction": sum(rate == 0 for rate in rates) / len(ratings),
        "always_solved_fraction": sum(rate == 1 for rate in rates) / len(ratings),
        "unverifiable_completions": float(sum(rating.unverifiable for rating in ratings)),
    }


def _table(rows: Sequence[Row], ratings: Sequence[Rating]) -> pa.Table:
    records = [
        {
            "question_sha256": hashlib.sha256(row.question.encode()).hexdigest(),
            "pass_rate": rating.pass_rate,
            "right": rating.right,
            "unverifiable": rating.unverifiable,
            "samples": rating.samples,
        }
        for row, rating in zip(rows, ratings, strict=True)
    ]
    return pa.Table.from_pylist(records, schema=PASS_RATES)
