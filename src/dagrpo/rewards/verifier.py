"""The record of a verifier: how answers are extracted and compared.

grading.py prices an answer; pool.py compares what no fast comparison can decide.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dagrpo.core.section import Extractor


def same_text(answer: str, other: str) -> bool:
    """Return whether two answers are the same text but for spaces."""
    return "".join(answer.split()) == "".join(other.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """A verifier. It reads any text in linear time, and fails on none.

    `check` raises UserError if a ground truth is invalid for the verifier, and so may `equal`.
    """

    name: str
    extract: Callable[[str, Extractor], str | None]  # the policy's text -> its answer, None when it gives none
    equal: Callable[[str, str], bool | None]  # answer, ground truth -> None: it takes math-verify to tell
    formatted: Callable[[str], bool]  # whether the text has the form the verifier asks for
    check: Callable[[str], None]  # raises UserError if a ground truth is invalid
    # Two answers, as extracted -> whether they are one and the same, for a vote; None: it takes math-verify to tell.
    same: Callable[[str, str], bool | None] = same_text
    by_report: bool = False  # no text is read: what the attempt's program or environment reports decides
    literal: bool = False  # extractor exact compares texts as they stand, and does not ask `equal`
