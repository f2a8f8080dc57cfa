"""Verdicts on batches of texts.

A verifier extracts and compares answers in this process, and worker processes run math-verify.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import TracebackType
from typing import Self

from dagrpo_answers.comparing import for_math_verify, no_latex
from dagrpo_answers.errors import UserError, place_of_code
from dagrpo_answers.own_text import answer_text, own_text
from dagrpo_answers.pool import Comparison, WorkerPool
from dagrpo_answers.scorers import Scorer
from dagrpo_answers.verifier import Extractor, ProgramLimits, Tests, Verdict, Verifier
from dagrpo_answers.verifiers import get_verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Verdict on one text."""

    answer: str | None  # as read; None without one (verdict missing)
    verdict: Verdict
    passed: float | None = None  # share of tests, or of the ground truth's parts; None: not asked for, or no answer


class Judge:
    """Judge of batches of texts, from any thread. Worker processes start when first needed, and end with the block.

    seconds: time limit of math-verify for one answer. processes: of math-verify. limits: of programs under test.
    """

    def __init__(self, seconds: float = 2.0, processes: int = 1, limits: ProgramLimits | None = None) -> None:
        self._pool = WorkerPool(seconds=seconds, processes=processes)
        self._limits = limits or ProgramLimits()
        self._tests: dict[Verifier, Tests] = {}
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes and sandboxes."""
        self._pool.close()
        for tests in self._tests.values():
            tests.close()

    def judge(
        self,
        texts: Sequence[str],
        ground_truths: Sequence[str],
        verifiers: Sequence[Verifier | str],
        extractor: Extractor = "strict",
        *,
        fractions: bool = False,
    ) -> list[Judged]:
        """Return one verdict for each text, in order.

        verifiers: one for each text, or its name. fractions: run all tests of a program, also after one that fails.

        Raises UserError, with the row, if a ground truth is invalid for its verifier.
        """
        chosen = [get_verifier(each) if isinstance(each, str) else each for each in verifiers]
        judged: list[Judged] = []
        pending: dict[int, Comparison] = {}
        programs: dict[int, str] = {}
        for row, (text, truth, verifier) in enumerate(zip(texts, ground_truths, chosen, strict=True)):
            if verifier.parts:
                judged.append(_judge_parts(verifier, answer_text(text), truth, extractor, row))
                continue
            answer, verdict = judge_fast(verifier, text, truth, extractor, row)
            if verdict is None and answer is not None and verifier.tests:
                programs[row] = answer
            elif verdict is None and answer is not None:
                pending[row] = Comparison(answer=for_math_verify(answer), ground_truth=for_math_verify(truth))
            judged.append(Judged(answer=answer, verdict=verdict or "unverifiable"))
        self._decide(judged, pending)
        self._test(judged, programs, ground_truths, chosen, fractions)
        return judged

    def same(self, pairs: Sequence[tuple[str, str]], verifiers: Sequence[Verifier], extractor: Extractor) -> list[bool]:
        """Return for each pair of extracted answers whether their verifier finds them equal; False if undecided."""
        equal = [_same(verifier, *pair, extractor) for pair, verifier in zip(pairs, verifiers, strict=True)]
        undecided = [pair for pair, same in zip(pairs, equal, strict=True) if same is None]
        questions = [
            Comparison(answer=for_math_verify(answer), ground_truth=for_math_verify(other))
            for answer, other in undecided
        ]
        replies = iter(self._pool.compare(questions) if questions else [])
        return [next(replies) == "right" if same is None else same for same in equal]

    def judge_as_published(
        self, texts: Sequence[str], ground_truths: Sequence[str], scorer: Scorer
    ) -> list[bool | None]:
        """Return for each whole text whether the scorer finds it right; None if math-verify did not decide within its limits."""
        judged = [scorer.right(text, truth) for text, truth in zip(texts, ground_truths, strict=True)]
        questions = [
            Comparison(answer=text, ground_truth=truth, published=True)
            for text, truth, right in zip(texts, ground_truths, judged, strict=True)
            if right is None
        ]
        replies = iter(self._pool.compare(questions) if questions else [])
        decided = (None if reply == "unverifiable" else reply == "right" for reply in replies)
        return [next(decided) if right is None else right for right in judged]

    def _decide(self, judged: list[Judged], pending: Mapping[int, Comparison]) -> None:
        """Set the verdicts of math-verify."""
        replies = self._pool.compare(list(pending.values())) if pending else []
        for (row, comparison), reply in zip(pending.items(), replies, strict=True):
            if reply == "no_ground_truth":
                raise UserError(f"row {row}: {no_latex(comparison.ground_truth)}")
            judged[row] = Judged(answer=comparison.answer, verdict=reply)

    def _test(
        self,
        judged: list[Judged],
        programs: Mapping[int, str],
        ground_truths: Sequence[str],
        verifiers: Sequence[Verifier],
        fractions: bool,
    ) -> None:
        """Set the verdicts of programs by their tests."""
        for verifier in dict.fromkeys(verifiers[row] for row in programs):
            rows = [row for row in programs if verifiers[row] == verifier]
            answers = [(programs[row], ground_truths[row]) for row in rows]
            tests = self._tests_of(verifier)
            for row, share in zip(rows, tests.shares(answers, fractions=fractions), strict=True):
                verdict: Verdict = "unverifiable" if share is None else "right" if share == 1.0 else "wrong"
                judged[row] = replace(judged[row], verdict=verdict, passed=share if fractions else None)

    def _tests_of(self, verifier: Verifier) -> Tests:
        with self._starting:
            if verifier not in self._tests:
                assert verifier.tests is not None
                self._tests[verifier] = verifier.tests(self._limits)
            return self._tests[verifier]


def _judge_parts(verifier: Verifier, text: str, truth: str, extractor: Extractor, row: int) -> Judged:
    """Judge by the parts of the ground truth; the answer is the names of those that the text has."""
    assert verifier.parts is not None
    if not text.strip():
        return Judged(answer=None, verdict="missing")
    try:
        parts = verifier.parts(text, truth, extractor)
    except UserError as error:
        raise UserError(f"row {row}: {error}") from None
    had = [name for name, has in parts if has]
    verdict: Verdict = "right" if len(had) == len(parts) else "wrong"
    return Judged(answer=", ".join(had), verdict=verdict, passed=len(had) / len(parts))


def _same(verifier: Verifier, answer: str, other: str, extractor: Extractor) -> bool | None:
    if answer == other:
        return True
    if extractor == "exact" and verifier.literal:
        return False
    try:
        return verifier.same(answer, other)
    except UserError:  # `other` is not valid as a ground truth: a policy wrote it
        return False


def judge_fast(
    verifier: Verifier, text: str, truth: str, extractor: Extractor, row: int
) -> tuple[str | None, Verdict | None]:
    """Return the answer, and its verdict unless math-verify decides. Raises UserError, with the row or the verifier's line."""
    answer = verifier.extract(answer_text(text), extractor)
    if answer is None:
        return None, "missing"
    if not isinstance(answer, str):
        raise _wrong(verifier.name, "extract", verifier.extract, answer, "a text or None")
    if extractor == "exact" and verifier.literal:
        return answer, "right" if answer == truth else "wrong"
    try:
        equal = verifier.equal(answer, truth)
    except UserError as error:
        raise UserError(f"row {row}: {error}") from None
    if equal not in (None, True, False):
        raise _wrong(verifier.name, "equal", verifier.equal, equal, "True, False or None")
    return answer, None if equal is None else "right" if equal else "wrong"


def has_form(verifier: Verifier, text: str) -> bool:
    """Return True if a text has the form that the verifier's prompts ask for."""
    return verifier.formatted(own_text(text) if verifier.asks_for_thought else answer_text(text))


def _wrong(verifier: str, field: str, function: object, value: object, right: str) -> UserError:
    """Return the error of a verifier's function that has returned another type."""
    place = place_of_code(function)
    return UserError(f"verifier {verifier}: `{field}` ({place}) returned {repr(value)[:60]}, not {right}: correct it.")


@cache
def _judge() -> Judge:
    """Return this process's judge, which ends with it."""
    return Judge()


def verify(text: str, ground_truth: str, verifier: str = "math", extractor: Extractor = "strict") -> bool | None:
    """Return whether a text's answer is right; None if that could not be decided within the limits.

    Raises UserError for an unknown verifier and for a ground truth that it cannot read.
    """
    (judged,) = _judge().judge([text], [ground_truth], [verifier], extractor)
    return None if judged.verdict == "unverifiable" else judged.verdict == "right"
