"""Attempts that are made up, of as many tokens as a test wants."""

from collections.abc import Sequence
from typing import Any

from tests.rollout.problems import problem

from dagrpo.core.trajectory import GradedTrajectory, TokenSample, Trajectory
from dagrpo.core.types import Score
from dagrpo_answers.verifier import Verdict


def written(tokens: Sequence[int], prompt: Sequence[int] = (5,), logprob: float = -1.0, **changes: Any) -> TokenSample:
    """Return a sample in which the policy wrote these tokens after the prompt."""
    values = {"weight_version": "step_0"} | changes
    return TokenSample(
        token_ids=(*prompt, *tokens),
        loss_mask=(*[False] * len(prompt), *[True] * len(tokens)),
        logprobs=(*[0.0] * len(prompt), *[logprob] * len(tokens)),
        **values,
    )


def attempt(row: int, *samples: TokenSample, **changes: Any) -> Trajectory:
    """Return an attempt at the problem with that index."""
    values = {"sample_index": 0, "sampling_seed": 1, "text": "text", "finish_reason": "stop"} | changes
    fields: dict[str, Any] = {"prompt": problem(row), "samples": samples} | values
    return Trajectory(**fields)


def scored(
    trajectory: Trajectory, reward: float = 1.0, verdict: Verdict = "right", **components: float
) -> GradedTrajectory:
    """Return an attempt with that reward."""
    score = Score(extracted=None, reward=reward, verdict=verdict, verifier="gsm8k", components=components)
    return GradedTrajectory(trajectory=trajectory, score=score)


def graded(
    index: int, sample: int, *, reward: float, correct: bool = False, tokens: int = 1, task: str = "arithmetic"
) -> GradedTrajectory:
    """Return an attempt at the problem with that index, whose only component is its accuracy."""
    own = written([7] * tokens, (5, 10 + index), weight_version="v")
    prompt = problem(index, task=task)
    trajectory = attempt(index, own, prompt=prompt, sample_index=sample, sampling_seed=sample)
    return scored(trajectory, reward, "right" if correct else "wrong", accuracy=reward)
