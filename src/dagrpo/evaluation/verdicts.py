"""Verdict and vote of each completion of a rollout table.

Votes are sampled answers, in classes that the verifier finds equal. Right answers are one class, whatever their texts. Others are
compared with each other, as the verifier would with a ground truth; `statistics` counts the votes.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.core.types import Score
from dagrpo.rewards.grading import Grader
from dagrpo_answers.scorers import Scorer
from dagrpo_answers.verifier import Extractor

MOST_COMPARED = 40  # different wrong answers to one problem; others vote by their texts


def scores_of(completions: pa.Table, extractor: Extractor, grader: Grader) -> list[Score]:
    """Extract and grade every answer, without rewards. Raises UserError if a ground truth is invalid for its verifier.

    An excluded attempt is unverifiable, whatever it had written: its final answer is unknown.
    """
    texts, truths, verifiers = (
        completions.column(name).to_pylist() for name in ("completion", "ground_truth", "verifier")
    )
    reported = [dict(rewards) for rewards in completions.column("reported").to_pylist()]
    scores = grader.judge(texts, truths, verifiers, extractor, reported)
    excluded = pc.equal(completions.column("stop_reason"), "excluded").to_pylist()
    return [
        replace(score, extracted=None, verdict="unverifiable") if out else score
        for score, out in zip(scores, excluded, strict=True)
    ]


def by_scorer(completions: pa.Table, scorer: Scorer, grader: Grader) -> list[bool | None]:
    """Return whether a published scorer finds each completion right; None where it could not decide, or the attempt was excluded."""
    texts, truths = (completions.column(name).to_pylist() for name in ("completion", "ground_truth"))
    right = grader.judge_as_published(texts, truths, scorer)
    excluded = pc.equal(completions.column("stop_reason"), "excluded").to_pylist()
    return [None if out else each for each, out in zip(right, excluded, strict=True)]


def columns(scores: Sequence[Score], completions: pa.Table) -> dict[str, Any]:
    """Return the columns of a scores table that follow from the scores and the completions."""
    return {
        "extracted": [score.extracted for score in scores],
        "verdict": [score.verdict for score in scores],
        "correct": [score.verdict == "right" for score in scores],
        "truncated": pc.equal(completions.column("finish_reason"), "length"),
        "completion_tokens": pc.list_value_length(completions.column("completion_ids")),
    }


def votes(problems: Sequence[int], scores: Sequence[Score], extractor: Extractor, grader: Grader) -> list[str | None]:
    """Return, for each score, the first equal answer to its problem; None without an answer. `problems`: any key for each score."""
    right: dict[int, str] = {}
    wrong: dict[int, dict[str, str]] = {}
    for problem, score in zip(problems, scores, strict=True):
        if score.extracted is not None and score.verdict == "right":
            right.setdefault(problem, score.extracted)
        elif score.extracted is not None:
            wrong.setdefault(problem, {}).setdefault(score.extracted, score.verifier)
    same = _same(wrong, extractor, grader)
    return [_vote(problem, score, right, same) for problem, score in zip(problems, scores, strict=True)]


def _vote(problem: int, score: Score, right: dict[int, str], same: dict[tuple[int, str], str]) -> str | None:
    if score.extracted is None:
        return None
    return right[problem] if score.verdict == "right" else same[problem, score.extracted]


def _same(wrong: dict[int, dict[str, str]], extractor: Extractor, grader: Grader) -> dict[tuple[int, str], str]:
    """Return the first of the equal answers by problem and wrong answer; all problems are compared in one batch."""
    pairs = [
        (problem, *pair)
        for problem, answers in wrong.items()
        for pair in combinations(list(answers)[:MOST_COMPARED], 2)
    ]
    verifiers = [wrong[problem][answer] for problem, answer, _ in pairs]
    alike = grader.same([(other, answer) for _, answer, other in pairs], verifiers, extractor)
    first = {(problem, answer): answer for problem, answers in wrong.items() for answer in answers}
    for (problem, answer, other), is_same in zip(pairs, alike, strict=True):
        if is_same and first[problem, other] == other:
            first[problem, other] = first[problem, answer]
    return first
