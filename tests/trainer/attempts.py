"""Graded attempts that are made up, of as many tokens as a test wants."""

from tests.rollout.problems import problem

from dagrpo.core.trajectory import GradedTrajectory, TokenSample, Trajectory
from dagrpo.core.types import Score
from dagrpo_answers.verifier import Verdict


def graded(index: int, sample: int, *, reward: float, correct: bool = False, tokens: int = 1) -> GradedTrajectory:
    """One attempt at the problem with that index."""
    written = TokenSample(
        token_ids=(5, 10 + index, *[7] * tokens),
        loss_mask=(False, False, *[True] * tokens),
        logprobs=(0.0, 0.0, *[-1.0] * tokens),
        weight_version="v",
    )
    verdict: Verdict = "right" if correct else "wrong"
    return GradedTrajectory(
        trajectory=Trajectory(
            prompt=problem(index),
            sample_index=sample,
            sampling_seed=sample,
            samples=(written,),
            text="text",
            finish_reason="stop",
        ),
        score=Score(extracted=None, reward=reward, verdict=verdict, verifier="gsm8k", components={"accuracy": reward}),
    )
