"""Grading: verdicts on answers, and the rewards of trajectories.

A verifier extracts and compares answers in this process; worker processes run math-verify. A trajectory's reward is the weighted sum
of the components of section `reward`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Self

from dagrpo.core.errors import UserError
from dagrpo.core.section import Extractor
from dagrpo.core.types import Attempt, Score, Verdict
from dagrpo.rewards.components import COMPONENTS, Judged, value_of
from dagrpo.rewards.config import Reward
from dagrpo.rewards.latex import for_math_verify, no_latex
from dagrpo.rewards.own_text import own_text
from dagrpo.rewards.pool import WorkerPool
from dagrpo.rewards.reporting import verdict_of
from dagrpo.rewards.verifier import Verifier
from dagrpo.rewards.verifiers import get_verifier
from dagrpo.rewards.worker_process import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An extracted answer and its verdict. `answer` is None if none was found (verdict missing)."""

    answer: str | None
    verdict: Verdict


def _judgement(answer: str | None, verdict: Verdict) -> Judgement:
    return _cached_judgement(answer, verdict) if answer is None or len(answer) < 40 else _new_judgement(answer, verdict)


def _new_judgement(answer: str | None, verdict: Verdict) -> Judgement:
    return Judgement(answer=answer, verdict=verdict)


_cached_judgement = lru_cache(maxsize=1 << 12)(_new_judgement)  # most answers of a group are alike


class Grader:
    """Judge of batches of texts, from any thread. Worker processes start when first needed, and end with the block."""

    def __init__(self, verify_seconds: float, processes: int | None = None) -> None:
        self._pool = WorkerPool(seconds=verify_seconds, processes=processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()

    def judge(
        self,
        texts: Sequence[str],
        ground_truths: Sequence[str],
        verifiers: Sequence[str],
        extractor: Extractor,
        reported: Sequence[Mapping[str, float]] | None = None,
    ) -> list[Judgement]:
        """Return one judgement for each text, in order. Raises UserError, with the row, if a ground truth is invalid for its verifier.

        reported: the reports of programs and environments, one per text; None: none.
        """
        judged: list[Judgement] = []
        pending: dict[int, Comparison] = {}
        known = {name: get_verifier(name) for name in set(verifiers)}
        for row, (text, truth, name) in enumerate(zip(texts, ground_truths, verifiers, strict=True)):
            if known[name].by_report:
                judged.append(_by_report(reported[row] if reported else {}))
                continue
            answer, verdict = _judge_fast(known[name], text, truth, extractor, row)
            if verdict is None and answer is not None:
                pending[row] = Comparison(answer=for_math_verify(answer), ground_truth=for_math_verify(truth))
            judged.append(_judgement(answer, verdict or "unverifiable"))
        return self._with_slow_verdicts(judged, pending) if pending else judged

    def same(self, pairs: Sequence[tuple[str, str]], verifiers: Sequence[str], extractor: Extractor) -> list[bool]:
        """Return for each pair of extracted answers whether their verifier finds them equal; False if undecided."""
        known = {name: get_verifier(name) for name in set(verifiers)}
        equal = [_same(known[name], *pair, extractor) for pair, name in zip(pairs, verifiers, strict=True)]
        pending = {
            row: Comparison(answer=for_math_verify(pairs[row][0]), ground_truth=for_math_verify(pairs[row][1]))
            for row, same in enumerate(equal)
            if same is None
        }
        replies = dict(zip(pending, self._pool.compare(list(pending.values())), strict=True)) if pending else {}
        return [replies.get(row) == "right" if same is None else same for row, same in enumerate(equal)]

    def _with_slow_verdicts(self, judged: list[Judgement], pending: Mapping[int, Comparison]) -> list[Judgement]:
        replies = self._pool.compare(list(pending.values()))
        for (row, comparison), reply in zip(pending.items(), replies, strict=True):
            if reply == "no_ground_truth":
                raise UserError(f"row {row}: {no_latex(comparison.ground_truth)}")
            judged[row] = Judgement(answer=comparison.answer, verdict=reply)
        return judged


def _by_report(rewards: Mapping[str, float]) -> Judgement:
    """Return the judgement by a report. The verdict stands for the answer, so that a majority of attempts can be right."""
    verdict = verdict_of(rewards)
    return Judgement(answer=None if verdict == "missing" else verdict, verdict=verdict)


def _same(verifier: Verifier, answer: str, other: str, extractor: Extractor) -> bool | None:
    if answer == other:
        return True
    if extractor == "exact" and verifier.literal:
        return False
    try:
        return verifier.same(answer, other)
    except UserError:  # `other` is not valid as a ground truth: a policy wrote it
        return False


def _judge_fast(
    verifier: Verifier, text: str, truth: str, extractor: Extractor, row: int
) -> tuple[str | None, Verdict | None]:
    """Return the answer, and its verdict unless math-verify decides."""
    answer = verifier.extract(own_text(text), extractor)
    if answer is None:
        return None, "missing"
    if extractor == "exact" and verifier.literal:
        return answer, "right" if answer == truth else "wrong"
    try:
        equal = verifier.equal(answer, truth)
    except UserError as error:
        raise UserError(f"row {row}: {error}") from None
    return answer, None if equal is None else "right" if equal else "wrong"


# ---- rewards ----


def grade_all(attempts: Sequence[Attempt], reward: Reward, max_new_tokens: int, grader: Grader) -> list[Score]:
    """Return one score for each attempt, in order.

    `reward.verifier` overrides the one of the attempt unless it is "task". `max_new_tokens` is where the overlong
    penalty ends. Raises UserError naming the row if a ground truth is invalid for its verifier.
    """
    verifiers = [attempt.verifier if reward.verifier == "task" else reward.verifier for attempt in attempts]
    judgements = grader.judge(
        [attempt.text for attempt in attempts],
        [attempt.ground_truth for attempt in attempts],
        verifiers,
        reward.extractor,
        [attempt.reported for attempt in attempts],
    )
    return [
        _score(
            Judged(
                attempt=attempt,
                verdict=judgement.verdict,
                extracted=judgement.answer,
                verifier=verifier,
                max_new_tokens=max_new_tokens,
            ),
            reward,
        )
        for attempt, judgement, verifier in zip(attempts, judgements, verifiers, strict=True)
    ]


def _score(judged: Judged, reward: Reward) -> Score:
    """Compute the components that have a weight, and add them up in the order of their names."""
    weighted = {name: config for name, config in reward.components.items() if config.weight}
    values = {name: value_of(name, judged, config) for name, config in weighted.items()}
    return Score(
        extracted=judged.extracted,
        correct=None if judged.verdict == "unverifiable" else judged.verdict == "right",
        reward=sum(config.weight * values[name] for name, config in weighted.items()),
        verdict=judged.verdict,
        components={COMPONENTS.label(name): value for name, value in values.items()},
    )
