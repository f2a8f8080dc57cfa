"""Verdict and vote of each completion of a rollout table.

Votes are sampled answers, in classes that the verifier finds equal. Right answers are one class, whatever their texts. Others are
compared with each other, as the verifier would with a ground truth; `statistics` counts the votes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.core.section import Extractor
from dagrpo.core.types import Verdict
from dagrpo.rewards.grading import Grader

MOST_COMPARED = 40  # different wrong answers to one problem; others vote by their texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """One entry for each completion, in order."""

    answers: Sequence[str | None]  # None: no answer could be extracted
    verdicts: Sequence[Verdict]

    def columns(self, completions: pa.Table) -> Mapping[str, Any]:
        """Return the columns of a scores table that follow from the verdicts and the completions."""
        return {
            "extracted": self.answers,
            "verdict": self.verdicts,
            "correct": [verdict == "right" for verdict in self.verdicts],
            "truncated": pc.equal(completions.column("finish_reason"), "length"),
            "completion_tokens": pc.list_value_length(completions.column("completion_ids")),
        }


def judged(completions: pa.Table, extractor: Extractor, grader: Grader) -> Verdicts:
    """Extract and grade every answer. Raises UserError if a ground truth is invalid for its verifier.

    An excluded attempt is unverifiable, whatever it had written: its final answer is unknown.
    """
    texts, truths, verifiers = (
        completions.column(name).to_pylist() for name in ("completion", "ground_truth", "verifier")
    )
    reported = [dict(rewards) for rewards in completions.column("reported").to_pylist()]
    judgements = grader.judge(texts, truths, verifiers, extractor, reported)
    excluded = pc.equal(completions.column("stop_reason"), "excluded").to_pylist()
    return Verdicts(
        answers=[None if out else each.answer for each, out in zip(judgements, excluded, strict=True)],
        verdicts=["unverifiable" if out else each.verdict for each, out in zip(judgements, excluded, strict=True)],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """Answer to a problem, extracted and judged. `problem` may be any key."""

    problem: int
    verifier: str
    answer: str | None
    verdict: Verdict


def votes(ballots: Sequence[Ballot], extractor: Extractor, grader: Grader) -> list[str | None]:
    """Return, for each ballot, the first equal answer to its problem; None for a ballot that does not vote."""
    right: dict[int, str] = {}
    wrong: dict[int, dict[str, str]] = {}
    for ballot in ballots:
        if ballot.answer is not None and ballot.verdict == "right":
            right.setdefault(ballot.problem, ballot.answer)
        elif ballot.answer is not None:
            wrong.setdefault(ballot.problem, {}).setdefault(ballot.answer, ballot.verifier)
    same = _same(wrong, extractor, grader)
    return [_vote(ballot, right, same) for ballot in ballots]


def _vote(ballot: Ballot, right: dict[int, str], same: dict[tuple[int, str], str]) -> str | None:
    if ballot.answer is None:
        return None
    return right[ballot.problem] if ballot.verdict == "right" else same[ballot.problem, ballot.answer]


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
