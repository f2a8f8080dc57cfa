"""Trajectory: one attempt at one prompt, token for token.

Training, difficulty and evaluation use the same records. No text here was tokenized twice: token ids and
logprobs are the engine's own.
"""

import itertools
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagrpo.core.types import EXCLUDED, CallStatus, PromptPictures, Row, Score, StopReason, ToolCall

GREEDY = -1  # sample_index of the one attempt at temperature 0
BLIND = -2  # of another one at temperature 0, at the prompt without its pictures
FINE: frozenset[CallStatus] = frozenset({"ok"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Row of a split, rendered by the policy's chat template."""

    index: int  # the row of the split
    row: Row
    text: str  # the prompt as the template writes it
    token_ids: tuple[int, ...]  # [prompt], with as many placeholders for a picture as it takes tokens
    tools: tuple[Mapping[str, Any], ...] = ()  # OpenAI function schemas of what the policy may call
    # Of every prompt of a model that takes pictures, without files where this one has none; None: a model of text alone.
    pictures: PromptPictures | None = None

    @property
    def picture_files(self) -> tuple[bytes, ...]:
        """Return the picture files of the prompt, in order."""
        return () if self.pictures is None else self.pictures.files


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """Sequence of tokens to train on: each token extends those before it.

    Example: prompt (5, 6) and completion (7,): token_ids (5, 6, 7), loss_mask (F, F, T), logprobs (0, 0, -0.5).
    """

    token_ids: tuple[int, ...]  # [tokens], from the prompt's first on
    loss_mask: tuple[bool, ...]  # [tokens], True on the tokens that the policy wrote, and no other sample has
    # [tokens], the engine's, of the temperature-scaled softmax over the support; 0.0 where the mask is False
    logprobs: tuple[float, ...]
    weight_version: str  # of the weights that wrote it
    # [trained tokens], ids from low to high: what top_p and top_k left each one to be drawn from; (): the whole vocabulary
    support: tuple["array[int]", ...] = ()
    # Tokens that the policy wrote. Counted once: a step asks for it many times, and a mask has as many entries as the sample tokens.
    trained: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check that the columns are aligned, and count the trained tokens."""
        object.__setattr__(self, "trained", sum(self.loss_mask))
        assert len(self.token_ids) == len(self.loss_mask) == len(self.logprobs), "a sample's columns differ in length"
        assert not self.loss_mask or not self.loss_mask[0], "nothing predicts a sequence's first token"
        assert len(self.support) in (0, self.trained), "a token that was written lacks its support"
        assert all(mask or value == 0.0 for mask, value in zip(self.loss_mask, self.logprobs, strict=True))

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """Return the tokens that the policy wrote. [trained tokens]"""
        return tuple(token for token, mask in zip(self.token_ids, self.loss_mask, strict=True) if mask)

    @property
    def completion_logprobs(self) -> tuple[float, ...]:
        """Return the engine's logprobs of the tokens that the policy wrote. [trained tokens]"""
        return tuple(value for value, mask in zip(self.logprobs, self.loss_mask, strict=True) if mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Attempt at one prompt. Its samples share its reward and its advantage.

    It has one sample as long as every turn extends the tokens before it; one more wherever the chat template rewrites earlier
    messages, or a program goes back to an earlier turn. Each token that the policy wrote is in the mask of exactly one sample.
    """

    prompt: Prompt
    sample_index: int  # which of the attempts at the prompt, GREEDY, or BLIND
    sampling_seed: int
    samples: tuple[TokenSample, ...]  # none only where nothing was ever sampled
    text: str  # what is graded: the policy's last turn without its calls and special tokens; never a tool's or a user's text
    finish_reason: str  # of the last turn: "stop" or "length"
    turns: int = 1  # of the policy
    # Chat messages after the prompt, in order; results as the policy saw them.
    messages: tuple[Mapping[str, Any], ...] = ()
    calls: tuple[ToolCall, ...] = ()
    stop_reason: StopReason = "answered"
    fault: str = ""  # why it was excluded, or why its program failed
    reported: Mapping[str, float] = field(default_factory=dict)  # rewards that a program or an environment reports
    dropped_calls: int = 0  # that the chat format lost: 0, or a bug
    cached_tokens: int = 0  # of all prompts, which a server had computed before
    prompt_tokens: int = 0  # of all prompts
    max_new_tokens: int = 0  # of one turn: its limit; 0: unknown

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the policy wrote."""
        return sum(sample.trained for sample in self.samples)

    @property
    def longest_turn(self) -> int:
        """Return the largest number of tokens that the policy wrote without a break, such as an end of turn between two turns."""
        runs = (run for sample in self.samples for run in itertools.groupby(sample.loss_mask))
        return max((len(list(tokens)) for written, tokens in runs if written), default=0)

    @property
    def excluded(self) -> bool:
        """Return True if it must not be trained on, through no fault of the policy."""
        return self.stop_reason == EXCLUDED

    @property
    def learned(self) -> bool:
        """Return True if it can be trained on: it was not excluded, and the policy wrote something."""
        return not self.excluded and self.tokens > 0

    @property
    def failed_calls(self) -> int:
        """Return the number of calls that failed."""
        return sum(call.status not in FINE for call in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedTrajectory:
    """Trajectory and its reward."""

    trajectory: Trajectory
    score: Score
