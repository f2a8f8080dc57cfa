"""Extracted answer and verdict of each completion of a rollout table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.core.section import Extractor
from dagrpo.core.types import Verdict
from dagrpo.rewards.grading import Grader


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

    An excluded attempt is unverifiable whatever it had written: its final answer is unknown.
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
