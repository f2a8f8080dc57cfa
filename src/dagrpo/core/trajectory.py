"""Trajectory: one attempt at one prompt, token for token.

Training, difficulty and evaluation use the same records. No text here was tokenized twice: token ids and
logprobs are the engine's own.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dagrpo.core.types import EXCLUDED, PromptPictures, Row, Score, StopReason, ToolCall, VersionRuns

GREEDY = -1  # sample_index of the one attempt at temperature 0
BLIND = -2  # of another one at temperature 0, at the prompt without its pictures
_Array = TypeVar("_Array", "array[int]", "array[float]")


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

    Example: prompt (5, 6) and completion (7,): token_ids (5, 6, 7), loss_mask (F, F, T), logprobs (0, 0, -0.5). Whatever sequences
    it is given, it keeps arrays of 4, 1 and 8 bytes a token: a step has tens of millions of tokens.
    """

    token_ids: Sequence[int]  # [tokens], from the prompt's first on; an array of C ints
    loss_mask: Sequence[bool]  # [tokens], True on the tokens that the policy wrote, and no other sample has; bytes
    # [tokens], the engine's, of the temperature-scaled softmax over the support; 0.0 where the mask is False; an array of doubles
    logprobs: Sequence[float]
    weight_version: str  # of the weights that wrote it
    earlier: VersionRuns = ()  # of the first tokens that the policy wrote, if other weights than `weight_version` did
    # [trained tokens], ids from low to high: what top_p and top_k left each one to be drawn from; (): the whole vocabulary
    support: tuple["array[int]", ...] = ()
    trained: int = field(init=False, compare=False, repr=False)  # tokens that the policy wrote
    written: tuple[slice, ...] = field(init=False, compare=False, repr=False)  # the runs of them, in order

    def __post_init__(self) -> None:
        """Pack the columns into arrays, check that they are aligned, and find the trained tokens."""
        mask = bytes(self.loss_mask)
        _set(self, token_ids=_packed("i", self.token_ids), loss_mask=mask, logprobs=_packed("d", self.logprobs))
        _set(self, trained=mask.count(1), written=_runs(mask))
        assert len(self.token_ids) == len(mask) == len(self.logprobs), "a sample's columns differ in length"
        assert not mask or not mask[0], "nothing predicts a sequence's first token"
        assert len(self.support) in (0, self.trained), "a token that was written lacks its support"
        ends = [0, *(end for run in self.written for end in (run.start, run.stop)), len(mask)]
        between = zip(ends[::2], ends[1::2], strict=True)
        assert not any(any(self.logprobs[slice(*gap)]) for gap in between), "a token that was not written has a logprob"

    @property
    def completion_ids(self) -> "array[int]":
        """Return the tokens that the policy wrote. [trained tokens]"""
        return self._of_written(_packed("i", self.token_ids))

    @property
    def completion_logprobs(self) -> "array[float]":
        """Return the engine's logprobs of the tokens that the policy wrote. [trained tokens]"""
        return self._of_written(_packed("d", self.logprobs))

    def _of_written(self, values: _Array) -> _Array:
        parts = [values[run] for run in self.written]
        for part in parts[1:]:
            parts[0].extend(part)
        return parts[0] if parts else values[:0]


def _packed(kind: Any, values: Sequence[Any]) -> Any:
    """Return the values as an array of this kind: themselves, if they are one."""
    return values if isinstance(values, array) and values.typecode == kind else array(kind, values)


def _set(sample: TokenSample, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(sample, name, value)


def _runs(mask: bytes) -> tuple[slice, ...]:
    """Return the slices of a mask that are True without a break."""
    runs, start = [], mask.find(1)
    while start >= 0:
        stop = mask.find(0, start)
        stop = len(mask) if stop < 0 else stop
        runs.append(slice(start, stop))
        start = mask.find(1, stop)
    return tuple(runs)


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
        return max((run.stop - run.start for sample in self.samples for run in sample.written), default=0)

    @property
    def excluded(self) -> bool:
        """Return True if it must not be trained on, through no fault of the policy."""
        return self.stop_reason == EXCLUDED

    @property
    def learned(self) -> bool:
        """Return True if it can be trained on: it was not excluded, and the policy wrote something."""
        return not self.excluded and self.tokens > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedTrajectory:
    """Trajectory and its reward."""

    trajectory: Trajectory
    score: Score
