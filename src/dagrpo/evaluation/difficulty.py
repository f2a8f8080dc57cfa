"""Stage `difficulty`: how often the policy that training starts from solves each train problem.

One rating per experiment, by the first seed's policy, so that all seeds choose from the same problems. With no samples
the split passes through: the DAG has one shape for every experiment.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from dagrpo.evaluation.sampling import SamplingRun, sample
from dagrpo.files import atomic_file, read_parquet, write_parquet
from dagrpo.params.base import Extractor
from dagrpo.records import Example, Verdict
from dagrpo.rewards.grading import Grader
from dagrpo.tasks.schema import from_table, to_table

PASS_RATES = pa.schema(
    [
        pa.field("question_sha256", pa.string(), nullable=False),
        pa.field("pass_rate", pa.float64()),  # null: no completion could be verified
        pa.field("right", pa.int32(), nullable=False),
        pa.field("unverifiable", pa.int32(), nullable=False),
        pa.field("samples", pa.int32(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """How the completions are graded: as the reward does."""

    verifier: str  # "task": each problem's own
    extractor: Extractor
    verify_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """The completions of one problem, counted."""

    right: int
    unverifiable: int
    samples: int

    @property
    def pass_rate(self) -> float | None:
        """The share of right answers among those that could be verified; None when none could."""
        verified = self.samples - self.unverifiable
        return self.right / verified if verified else None


def pass_through(split: Path, rated: Path, pass_rates: Path) -> None:
    """No ratings: the split as it is, and an empty table."""
    with atomic_file(rated) as temporary:
        shutil.copyfile(split, temporary)
    write_parquet(pass_rates, PASS_RATES.empty_table())


def rate(run: SamplingRun, grading: Grading, rated: Path, pass_rates: Path) -> list[Rating]:
    """Sample, grade, and write the split with its column pass_rate, and the ratings by themselves."""
    examples = from_table(read_parquet(run.test_split), run.test_split)
    ratings = ratings_of(sample(run), len(examples), grading)
    write_parquet(pass_rates, _table(examples, ratings))
    with_rates = [replace(e, pass_rate=r.pass_rate) for e, r in zip(examples, ratings, strict=True)]
    write_parquet(rated, to_table(with_rates))
    return ratings


def ratings_of(completions: pa.Table, problems: int, grading: Grading) -> list[Rating]:
    """One rating per problem, in the order of the split. completions: columns as in COMPLETIONS."""
    own = completions.column("verifier").to_pylist()
    verifiers = own if grading.verifier == "task" else [grading.verifier] * len(own)
    texts, truths = completions.column("completion").to_pylist(), completions.column("ground_truth").to_pylist()
    with Grader(grading.verify_seconds) as grader:
        judgements = grader.judge(texts, truths, verifiers, grading.extractor)
    verdicts: list[Counter[Verdict]] = [Counter() for _ in range(problems)]
    for problem, judgement in zip(completions.column("problem_index").to_pylist(), judgements, strict=True):
        verdicts[problem][judgement.verdict] += 1
    return [
        Rating(right=found["right"], unverifiable=found["unverifiable"], samples=found.total()) for found in verdicts
    ]


def metrics_to_log(ratings: Sequence[Rating]) -> dict[str, float]:
    """The ratings of a split in a few numbers."""
    known = [rating.pass_rate for rating in ratings if rating.pass_rate is not None]
    return {
        "mean_pass_rate": sum(known) / len(known) if known else 0.0,
        "never_solved_fraction": sum(rate == 0 for rate in known) / len(ratings),
        "always_solved_fraction": sum(rate == 1 for rate in known) / len(ratings),
        "unverifiable_completions": float(sum(rating.unverifiable for rating in ratings)),
    }


def _table(examples: Sequence[Example], ratings: Sequence[Rating]) -> pa.Table:
    rows = [
        {
            "question_sha256": hashlib.sha256(example.question.encode()).hexdigest(),
            "pass_rate": rating.pass_rate,
            "right": rating.right,
            "unverifiable": rating.unverifiable,
            "samples": rating.samples,
        }
        for example, rating in zip(examples, ratings, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=PASS_RATES)
