"""The record of a verifier: how answers are extracted and compared.

grading.py prices an answer; pool.py compares what no fast comparison can decide.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dagrpo.core.section import Extractor


def same_text(answer: str, other: str) -> bool:
    """Return True if two answers are the same text but for spaces."""
    return "".join(answer.split()) == "".join(other.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """A verifier. It reads any text in linear time and never fails.

    `check` raises UserError if a ground truth is invalid for the verifier, and so may `equal`.
    """

    name: str
    extract: Callable[[str, Extractor], str | None]  # the policy's text -> its answer; None without one
    equal: Callable[[str, str], bool | None]  # answer, ground truth -> whether equal; None: math-verify decides
    formatted: Callable[[str], bool]  # whether a text has the form that the prompt asks for
    check: Callable[[str], None]  # raises UserError if a ground truth is invalid
    # Two extracted answers -> whether they are the same, for a vote; None: math-verify decides.
    same: Callable[[str, str], bool | None] = same_text
    by_report: bool = False  # the report of the attempt's program or environment decides, and no text is read
    literal: bool = False  # extractor exact compares texts character by character, without `equal`
