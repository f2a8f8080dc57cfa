"""What one forward pass of a process takes at most. Imports no torch."""

from dataclasses import dataclass
from typing import Self

from dagrpo.params.runtime import Reduction, TrainingRuntime

# Logits that are read at a time, in rows of a vocabulary, see reading.py:
CACHED = 1 << 19  # on a CPU, whose cache they are to stay in: 2 MiB in float32
LAUNCHED = 1 << 26  # on other devices, where more of them keep the device busy: 256 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of a micro-batch. A trajectory that is beyond one of them by itself is a micro-batch of its own.

    `head_chunk_tokens` cuts no micro-batch: the head goes over each in chunks. Nor does `reduce_gradients`, which says when the
    gradients of micro-batches are added up over the ranks.
    """

    sequences: int
    tokens: int | None = None  # padding included; None: any number
    patches: int | None = None  # of pictures, each picture once; None: any number
    head_chunk_tokens: int | None = None  # trained tokens that the head runs on at a time; None: all at once
    share_prompts: bool = False  # whether a prompt that several sequences begin with is computed once
    reduce_gradients: Reduction = "each_mini_batch"

    @classmethod
    def of(cls, runtime: TrainingRuntime) -> Self:
        """The budget that the section runtime.training gives."""
        return cls(
            sequences=runtime.micro_batch_size,
            tokens=runtime.micro_batch_tokens,
            patches=runtime.micro_batch_patches,
            head_chunk_tokens=runtime.head_chunk_tokens,
            share_prompts=runtime.share_prompts,
            reduce_gradients=runtime.reduce_gradients,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What sequences side by side take of a budget."""

    sequences: int
    longest: int  # tokens: the others are padded to as many
    pictures: frozenset[int] = frozenset()  # by number; those of several sequences are there once
    prompts: frozenset[int] = frozenset()  # those that are computed once, by number
    longest_prompt: int = 0  # tokens of these: the others are padded to as many

    @property
    def tokens(self) -> int:
        """All that are computed, padding included."""
        return self.sequences * self.longest + len(self.prompts) * self.longest_prompt

    def beside(self, other: "Load") -> "Load":
        """The load of both side by side."""
        return Load(
            sequences=self.sequences + other.sequences,
            longest=max(self.longest, other.longest),
            pictures=self.pictures | other.pictures,
            prompts=self.prompts | other.prompts,
            longest_prompt=max(self.longest_prompt, other.longest_prompt),
        )
