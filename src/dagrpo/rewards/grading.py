"""Grading: verdicts on answers, and the rewards of trajectories.

A verifier extracts and compares answers in this process; worker processes run math-verify. A trajectory's reward is the weighted sum
of the components of section `reward`.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from types import TracebackType
from typing import Self

from dagrpo.core.errors import UserError, place_of_code
from dagrpo.core.section import Extractor
from dagrpo.core.trajectory import GradedTrajectory, Trajectory
from dagrpo.core.types import EXCLUDED, Score, Verdict
from dagrpo.rewards.components import COMPONENTS, OpenComponent, RewardModel, Weighted, value_of
from dagrpo.rewards.config import Reward
from dagrpo.rewards.latex import for_math_verify, no_latex
from dagrpo.rewards.own_text import answer_text
from dagrpo.rewards.pool import WorkerPool
from dagrpo.rewards.reporting import verdict_of
from dagrpo.rewards.scorers import Scorer
from dagrpo.rewards.unit_tests.settings import UnitTests
from dagrpo.rewards.verifier import Tests, Verifier
from dagrpo.rewards.verifiers import get_verifier
from dagrpo.rewards.worker_process import Comparison

DEFAULTS = UnitTests()


def _score(answer: str | None, verdict: Verdict, verifier: str) -> Score:
    make = _cached_score if answer is None or len(answer) < 40 else _new_score
    return make(answer, verdict, verifier)


def _new_score(answer: str | None, verdict: Verdict, verifier: str) -> Score:
    return Score(extracted=answer, verdict=verdict, verifier=verifier)


_cached_score = lru_cache(maxsize=1 << 12)(_new_score)  # most answers of a group are alike


class Grader:
    """Judge of batches of texts, from any thread. Worker processes start when first needed, and end with the block.

    reward_model: that of the component reward_model. Components that ask a model are used by one thread at a time.
    """

    def __init__(
        self,
        verify_seconds: float,
        processes: int | None = None,
        unit_tests: UnitTests = DEFAULTS,
        reward_model: RewardModel | None = None,
    ) -> None:
        self._pool = WorkerPool(seconds=verify_seconds, processes=processes)
        self._unit_tests = unit_tests
        self._tests: dict[str, Tests] = {}
        self._starting = threading.Lock()
        self._reward_model = reward_model
        self._opened: dict[str, OpenComponent] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes and sandboxes, and close the components that ask a model."""
        self._stack.close()
        self._pool.close()
        for tests in self._tests.values():
            tests.close()

    def opened(self, name: str, config: Weighted) -> OpenComponent:
        """Return a component that asks a model, opened by the first call."""
        if name not in self._opened:
            component = COMPONENTS.get(name)
            assert component.open is not None
            self._opened[name] = self._stack.enter_context(component.open(config, self._reward_model))
        return self._opened[name]

    def metrics(self, reward: Reward) -> dict[str, float]:
        """Return the metrics of the components that ask a model, of what they were asked since the last call."""
        asking = {name: config for name, config in reward.components.items() if _asks(name, config)}
        return {key: n for name, config in asking.items() for key, n in self.opened(name, config).metrics().items()}

    def judge(
        self,
        texts: Sequence[str],
        ground_truths: Sequence[str],
        verifiers: Sequence[str],
        extractor: Extractor,
        reported: Sequence[Mapping[str, float]] | None = None,
        fractions: bool = False,
    ) -> list[Score]:
        """Return one score for each text, in order, without its reward.

        Raises UserError, with the row, if a ground truth is invalid for its verifier.

        reported: the reports of programs and environments, one per text; None: none. fractions: run all tests of a program, also after
        one that fails.
        """
        scores: list[Score] = []
        pending: dict[int, Comparison] = {}
        programs: dict[int, str] = {}
        known = {name: get_verifier(name) for name in set(verifiers)}
        for row, (text, truth, name) in enumerate(zip(texts, ground_truths, verifiers, strict=True)):
            if known[name].by_report:
                scores.append(_by_report(reported[row] if reported else {}, name))
                continue
            if known[name].parts:
                scores.append(_by_parts(known[name], answer_text(text), truth, extractor, row))
                continue
            answer, verdict = _judge_fast(known[name], text, truth, extractor, row)
            if verdict is None and answer is not None and known[name].tests:
                programs[row] = answer
            elif verdict is None and answer is not None:
                pending[row] = Comparison(answer=for_math_verify(answer), ground_truth=for_math_verify(truth))
            scores.append(_score(answer, verdict or "unverifiable", name))
        scores = self._with_slow_verdicts(scores, pending) if pending else scores
        return self._tested(scores, programs, ground_truths, fractions) if programs else scores

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

    def judge_as_published(
        self, texts: Sequence[str], ground_truths: Sequence[str], scorer: Scorer
    ) -> list[bool | None]:
        """Return for each whole text whether the scorer finds it right; None if math-verify did not decide within its limits."""
        judged = [scorer.right(text, truth) for text, truth in zip(texts, ground_truths, strict=True)]
        pending = {
            row: Comparison(answer=texts[row], ground_truth=ground_truths[row], published=True)
            for row, right in enumerate(judged)
            if right is None
        }
        replies = dict(zip(pending, self._pool.compare(list(pending.values())), strict=True)) if pending else {}
        decided = {row: None if reply == "unverifiable" else reply == "right" for row, reply in replies.items()}
        return [decided.get(row) if right is None else right for row, right in enumerate(judged)]

    def _tested(
        self, scores: list[Score], programs: Mapping[int, str], ground_truths: Sequence[str], fractions: bool
    ) -> list[Score]:
        """Return the scores, those of programs by their tests."""
        for name in dict.fromkeys(scores[row].verifier for row in programs):
            rows = [row for row in programs if scores[row].verifier == name]
            answers = [(programs[row], ground_truths[row]) for row in rows]
            for row, share in zip(rows, self._tests_of(name).shares(answers, fractions=fractions), strict=True):
                verdict: Verdict = "unverifiable" if share is None else "right" if share == 1.0 else "wrong"
                scores[row] = replace(scores[row], verdict=verdict, passed=share if fractions else None)
        return scores

    def _tests_of(self, verifier: str) -> Tests:
        with self._starting:
            if verifier not in self._tests:
                tests = get_verifier(verifier).tests
                assert tests is not None
                self._tests[verifier] = tests(self._unit_tests)
            return self._tests[verifier]

    def _with_slow_verdicts(self, scores: list[Score], pending: Mapping[int, Comparison]) -> list[Score]:
        replies = self._pool.compare(list(pending.values()))
        for (row, comparison), reply in zip(pending.items(), replies, strict=True):
            if reply == "no_ground_truth":
                raise UserError(f"row {row}: {no_latex(comparison.ground_truth)}")
            scores[row] = replace(scores[row], extracted=comparison.answer, verdict=reply)
        return scores


def _by_report(rewards: Mapping[str, float], verifier: str) -> Score:
    """Return the score by a report. The verdict stands for the answer, so that a majority of attempts can be right."""
    verdict = verdict_of(rewards)
    return Score(extracted=None if verdict == "missing" else verdict, verdict=verdict, verifier=verifier)


def _by_parts(verifier: Verifier, text: str, truth: str, extractor: Extractor, row: int) -> Score:
    """Return the score by the parts of the ground truth; the answer is the names of those that the text has."""
    assert verifier.parts is not None
    if not text.strip():
        return _score(None, "missing", verifier.name)
    try:
        parts = verifier.parts(text, truth, extractor)
    except UserError as error:
        raise UserError(f"row {row}: {error}") from None
    had = [name for name, has in parts if has]
    verdict: Verdict = "right" if len(had) == len(parts) else "wrong"
    return replace(_new_score(", ".join(had), verdict, verifier.name), passed=len(had) / len(parts))


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


def _wrong(verifier: str, field: str, function: object, value: object, right: str) -> UserError:
    """Return the error of a verifier's function that has returned another type."""
    place = place_of_code(function)
    return UserError(f"verifier {verifier}: `{field}` ({place}) returned {repr(value)[:60]}, not {right}: correct it.")


# ---- rewards ----


def grade(trajectories: Sequence[Trajectory], reward: Reward, grader: Grader, step: int = 1) -> list[GradedTrajectory]:
    """Return each trajectory with its reward, in order. The weights are those of the step, from 1.

    `reward.verifier` overrides the one of the row unless it is "task". Raises UserError naming the row if a ground truth is invalid
    for its verifier.
    """
    rows = [trajectory.prompt.row for trajectory in trajectories]
    scores = grader.judge(
        [trajectory.text for trajectory in trajectories],
        [row.ground_truth for row in rows],
        [row.verifier if reward.verifier == "task" else reward.verifier for row in rows],
        reward.extractor,
        [trajectory.reported for trajectory in trajectories],
        any(COMPONENTS.get(name).needs_tests for name, config in reward.components.items() if config.counts),
    )
    graded = [
        GradedTrajectory(trajectory=trajectory, score=score)
        for trajectory, score in zip(trajectories, scores, strict=True)
    ]
    values = _values(graded, reward, grader)
    return [_rewarded(each, own, reward, step) for each, own in zip(graded, values, strict=True)]


def _asks(name: str, config: Weighted) -> bool:
    return config.counts and COMPONENTS.get(name).open is not None


def _values(graded: Sequence[GradedTrajectory], reward: Reward, grader: Grader) -> list[dict[str, float | None]]:
    """Return the components of each trajectory, unweighted, in the order of their names; None where a model gave no value.

    A model is not asked about trajectories that count nowhere, nor where the component that it requires is 0.
    """
    counted = {name: config for name, config in reward.components.items() if config.counts}
    asking = {name: config for name, config in counted.items() if _asks(name, config)}
    found: list[dict[str, float | None]] = [
        {name: value_of(name, each, config) for name, config in counted.items() if name not in asking}
        for each in graded
    ]
    for name in sorted(
        asking, key=lambda name: asking[name].requires in asking
    ):  # those that no asking one waits for first
        needed = asking[name].requires
        places = [
            place
            for place, (each, own) in enumerate(zip(graded, found, strict=True))
            if each.trajectory.learned and (not needed or (own[needed] or 0.0) > 0)
        ]
        answers = grader.opened(name, asking[name]).values([graded[place] for place in places]) if places else []
        for own in found:
            own[name] = 0.0
        for place, answer in zip(places, answers, strict=True):
            found[place][name] = answer
    return [{name: _gated(own, name, config) for name, config in counted.items()} for own in found]


def _gated(values: Mapping[str, float | None], name: str, config: Weighted) -> float | None:
    """Return a component's value, 0 unless the component that it requires is above 0."""
    return values[name] if not config.requires or (values[config.requires] or 0.0) > 0 else 0.0


def _rewarded(
    graded: GradedTrajectory, values: Mapping[str, float | None], reward: Reward, step: int
) -> GradedTrajectory:
    """Add the components up in the order of their names. Without the value of one the trajectory is excluded."""
    known = {name: value for name, value in values.items() if value is not None}
    score = replace(
        graded.score,
        reward=sum((reward.components[name].weight_at(step) * value for name, value in known.items()), 0.0),
        components={COMPONENTS.label(name): value for name, value in known.items()},
    )
    if len(known) == len(values):
        return replace(graded, score=score)
    fault = f"no value of {', '.join(name for name in values if name not in known)}"
    trajectory = replace(graded.trajectory, stop_reason=EXCLUDED, fault=fault)
    return replace(graded, trajectory=trajectory, score=score)
