"""Grading: verdicts on answers (dagrpo_answers), and the rewards of trajectories.

A trajectory's reward is the weighted sum of the components of section `reward`.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

from dagrpo.core.trajectory import GradedTrajectory, Trajectory
from dagrpo.core.types import EXCLUDED, Score
from dagrpo.rewards.components import COMPONENTS, OpenComponent, RewardModel, Weighted, value_of
from dagrpo.rewards.config import Reward
from dagrpo.rewards.reporting import verdict_of
from dagrpo.rewards.unit_tests import UnitTests
from dagrpo.rewards.verifiers import get_verifier
from dagrpo.utils.machine import memory_of_machine, processors
from dagrpo_answers.judging import Judge
from dagrpo_answers.pool import MEMORY_BYTES
from dagrpo_answers.scorers import Scorer
from dagrpo_answers.verifier import Extractor

BYTES_OF_A_WORKER = MEMORY_BYTES // 2  # at which it gives up; an ordinary one takes 0.1 GB
DEFAULTS = UnitTests()


def worker_count() -> int:
    """Return one worker per processor that this process may use, as far as memory reaches if each takes all that it may."""
    return max(1, min(processors(), memory_of_machine() // BYTES_OF_A_WORKER))


class Grader:
    """Judge of batches of texts by the names of their verifiers, from any thread; its processes end with the block.

    reward_model: that of the component reward_model. Components that ask a model are used by one thread at a time.
    """

    def __init__(
        self,
        verify_seconds: float,
        processes: int | None = None,
        unit_tests: UnitTests = DEFAULTS,
        reward_model: RewardModel | None = None,
    ) -> None:
        self._judge = Judge(verify_seconds, processes or worker_count(), unit_tests.limits())
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
        self._judge.close()

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
        known = {name: get_verifier(name) for name in set(verifiers)}
        chosen = [known[name] for name in verifiers]
        judged = self._judge.judge(texts, ground_truths, chosen, extractor, fractions=fractions)
        return [
            _by_report(reported[row] if reported else {}, name)
            if known[name].by_report
            else Score(extracted=each.answer, verdict=each.verdict, verifier=name, passed=each.passed)
            for row, (each, name) in enumerate(zip(judged, verifiers, strict=True))
        ]

    def same(self, pairs: Sequence[tuple[str, str]], verifiers: Sequence[str], extractor: Extractor) -> list[bool]:
        """Return for each pair of extracted answers whether their verifier finds them equal; False if undecided."""
        known = {name: get_verifier(name) for name in set(verifiers)}
        return self._judge.same(pairs, [known[name] for name in verifiers], extractor)

    def judge_as_published(
        self, texts: Sequence[str], ground_truths: Sequence[str], scorer: Scorer
    ) -> list[bool | None]:
        """Return for each whole text whether the scorer finds it right; None if math-verify did not decide within its limits."""
        return self._judge.judge_as_published(texts, ground_truths, scorer)


def _by_report(rewards: Mapping[str, float], verifier: str) -> Score:
    """Return the score by a report. The verdict stands for the answer, so that a majority of attempts can be right."""
    verdict = verdict_of(rewards)
    return Score(extracted=None if verdict == "missing" else verdict, verdict=verdict, verifier=verifier)


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
