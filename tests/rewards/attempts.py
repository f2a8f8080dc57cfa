"""Trajectories with as many tokens as a test wants, and their scores."""

from collections.abc import Sequence
from typing import Any

from tests.rollout.problems import problem

from dagrpo.core.trajectory import TokenSample, Trajectory
from dagrpo.core.types import Score
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader, grade


def _sample(tokens: int) -> TokenSample:
    return TokenSample(
        token_ids=(5, *[7] * tokens),
        loss_mask=(False, *[True] * tokens),
        logprobs=(0.0, *[-1.0] * tokens),
        weight_version="v",
    )


def attempt(
    text: str = "", *, ground_truth: str = "18", verifier: str = "gsm8k", tokens: Sequence[int] = (1,), **changes: Any
) -> Trajectory:
    """A trajectory whose turns have that many tokens each, of at most 20."""
    values = {"sample_index": 0, "sampling_seed": 0, "finish_reason": "stop", "max_new_tokens": 20, **changes}
    prompt = problem(ground_truth=ground_truth, verifier=verifier)
    return Trajectory(prompt=prompt, text=text, samples=tuple(map(_sample, tokens)), **values)


def scores(attempts: Sequence[Trajectory], reward: Reward, grader: Grader) -> list[Score]:
    return [each.score for each in grade(attempts, reward, grader)]
