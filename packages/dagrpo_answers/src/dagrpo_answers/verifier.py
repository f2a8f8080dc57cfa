"""The record of a verifier: how answers are extracted and compared.

judging.py asks it; pool.py compares what no fast comparison can decide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dagrpo_answers.errors import require_arguments

Verdict = Literal["right", "wrong", "missing", "unverifiable"]
Extractor = Literal["strict", "flexible", "exact"]
EXTRACTION = (
    "strict: in the form that the prompt asks for (after ####, after Answer:, in \\boxed{}); flexible: in any form, the last one "
    "that looks like an answer; exact: as strict, with nothing else beside it."
)
# Text, ground truth -> the parts of the ground truth by name, and whether the text has each.
Parts = Callable[[str, str, Extractor], Sequence[tuple[str, bool]]]


def same_text(answer: str, other: str) -> bool:
    """Return True if two answers are the same text but for spaces."""
    return "".join(answer.split()) == "".join(other.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """Limits of programs under test."""

    seconds: float = 4.0  # of processor time, for one test, where the row states none
    memory_mb: int = 1024  # of one test
    processes: int = 16  # and threads of a program
    parallel: int = 1  # tests that run at the same time


class Tests(Protocol):
    """Tests of answers that are programs, from any thread."""

    def shares(self, answers: Sequence[tuple[str, str]], *, fractions: bool) -> list[float | None]:
        """Return the share of tests that each answer passes, of pairs of an answer and a ground truth; None: undecided.

        Without `fractions` a share may be 0 if a test has failed. Raises UserError if nothing can be run here.
        """

    def close(self) -> None:
        """End what it has started."""


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
    tests: Callable[[ProgramLimits], Tests] | None = None  # what runs answers in the place of `equal`
    parts: Parts | None = None  # right with all of them; None: its ground truths have no parts
    # Verifiers of the tasks whose ground truths it reads beside its own tasks'; None: perhaps those of any task.
    reads_truths_of: tuple[str, ...] | None = None
    judges: bool = True  # False: a task without right answers, which cannot be scored
    asks_for_thought: bool = False  # `formatted` gets the text with its thoughts, `extract` without
    literal: bool = False  # extractor exact compares texts character by character, without `equal`

    def __post_init__(self) -> None:
        """Raise UserError, with its file and line, for a function that takes other arguments."""
        require_arguments("extract", self.extract, "text", "extractor")
        require_arguments("equal", self.equal, "answer", "ground_truth")
        require_arguments("formatted", self.formatted, "text")
        require_arguments("check", self.check, "ground_truth")
        require_arguments("same", self.same, "answer", "other")

    @property
    def votes(self) -> bool:
        """Return whether its answers can be compared with each other: programs, and parts of ground truths, cannot."""
        return not self.gives_shares

    @property
    def gives_shares(self) -> bool:
        """Return whether an answer can be right in part: by its tests, or the parts of its ground truth."""
        return self.tests is not None or self.parts is not None
