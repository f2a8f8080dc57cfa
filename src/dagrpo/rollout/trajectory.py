"""One attempt at one problem, token for token: what every rollout is, whoever asked for it.

Training, difficulty and evaluation see the same records. Nothing here is text that was tokenised twice: token ids and
logprobs are the engine's own.
"""

from dataclasses import dataclass

from dagrpo.records import Example, Score

GREEDY = -1  # sample_index of the one attempt at temperature 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One row of a split, rendered by the policy's chat template."""

    index: int  # the row of the split
    example: Example
    text: str  # the prompt as the template writes it
    token_ids: tuple[int, ...]  # [prompt]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """A sequence of tokens that the trainer can learn from: each token extends those before it.

    Example: prompt (5, 6) and completion (7,): token_ids (5, 6, 7), loss_mask (F, F, T), logprobs (0, 0, -0.5).
    """

    token_ids: tuple[int, ...]  # [tokens], from the prompt's first on
    loss_mask: tuple[bool, ...]  # [tokens], True on the tokens that the policy wrote
    # [tokens], the engine's, of the temperature-scaled softmax; 0.0 where the mask is False
    logprobs: tuple[float, ...]
    weight_version: str  # of the weights that wrote it

    def __post_init__(self) -> None:
        """A sample that is not aligned is a bug of whoever made it."""
        assert len(self.token_ids) == len(self.loss_mask) == len(self.logprobs), "a sample's columns differ in length"
        assert not self.loss_mask or not self.loss_mask[0], "nothing predicts a sequence's first token"
        assert all(mask or value == 0.0 for mask, value in zip(self.loss_mask, self.logprobs, strict=True))

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """The tokens that the policy wrote. [completion]"""
        return tuple(token for token, mask in zip(self.token_ids, self.loss_mask, strict=True) if mask)

    @property
    def completion_logprobs(self) -> tuple[float, ...]:
        """The engine's logprobs of those. [completion]"""
        return tuple(value for value, mask in zip(self.logprobs, self.loss_mask, strict=True) if mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One attempt at one problem. Its samples share its reward and its advantage; a single turn has one sample."""

    problem: Problem
    sample_index: int  # which of the attempts at the problem, or GREEDY
    sampling_seed: int
    samples: tuple[TokenSample, ...]
    text: str  # what the policy wrote, all its turns, without special tokens
    finish_reason: str  # of the last turn: "stop" or "length"
    turns: int = 1  # of the policy
    tool_calls: int = 0
    failed_tool_calls: int = 0  # undecodable, unknown, refused or ended in an error

    @property
    def tokens(self) -> int:
        """How many tokens the policy wrote."""
        return sum(sum(sample.loss_mask) for sample in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedTrajectory:
    """A trajectory and what it is worth."""

    trajectory: Trajectory
    score: Score
