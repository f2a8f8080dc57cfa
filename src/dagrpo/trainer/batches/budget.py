"""Limits of one forward pass of a process. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagrpo.trainer.config.runtime import Layout, Reduction, SftRuntime, TrainingRuntime

# Logits that are read at a time, in rows of a vocabulary, see trainer/model/head.py:
CACHED = 1 << 19  # on a CPU, whose cache they are to stay in: 2 MiB in float32
LAUNCHED = 1 << 26  # on other devices, where more of them keep the device busy: 256 MiB
HEAD_CHUNK_ON_GPU = 8192  # trained tokens: 2.5 GB of logits in 16 bits of a vocabulary of 150,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a micro-batch. A trajectory that exceeds one of them by itself is a micro-batch alone.

    `head_chunk_tokens` cuts no micro-batch: the head goes over each in chunks. Nor does `reduce_gradients`, which says when the
    gradients of micro-batches are added up over the ranks.
    """

    sequences: int
    tokens: int | None = None  # including padding, if any; None: any number
    patches: int | None = None  # of pictures, each picture once; None: any number
    head_chunk_tokens: int | None = None  # trained tokens that the head runs on at a time; None: all at once
    layout: Layout = "padded"
    share_prompts: bool = False  # whether a prompt that several sequences begin with is computed once
    reduce_gradients: Reduction = "each_mini_batch"
    compiled: bool = False  # whether torch compiles the layers: see trainer/model/prepare.py


def head_chunk_of(runtime: TrainingRuntime | SftRuntime, *, on_gpu: bool, linear_head: bool = True) -> int | None:
    """Return the number of trained tokens that the head processes at a time; None: all at once, as a non-linear head must."""
    usual = HEAD_CHUNK_ON_GPU if on_gpu and linear_head else None
    return usual if runtime.head_chunk_tokens is None else runtime.head_chunk_tokens


def reduction_of(runtime: TrainingRuntime | SftRuntime, *, on_gpu: bool) -> Reduction:
    """Return when gradients are added up: on GPUs by default as soon as possible, so that no rank keeps a whole gradient.

    For a single process, which has no other gradients to add, the CPU's default is recorded.
    """
    usual: Reduction = "each_micro_batch" if on_gpu and runtime.processes > 1 else "each_mini_batch"
    return runtime.reduce_gradients or usual


def usual_layout(*, narrow: bool, on_gpu: bool, share_prompts: bool = False) -> Layout:
    """Return the layout for `layout: null`, if the model supports it. `narrow`: a GPU computes packed rows by its kernel for 16 bits."""
    return "packed" if narrow or share_prompts or not on_gpu else "padded"


def usual_sharing(layout: Layout, *, on_gpu: bool) -> bool:
    """Return the default of share_prompts: True only where sharing was measured to be faster."""
    return layout == "packed" and not on_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Share of a budget that the sequences of one micro-batch use."""

    sequences: int
    longest: int  # tokens
    total: int  # tokens of all of them
    pictures: frozenset[int] = frozenset()  # by number; those of several sequences are there once
    prompts: Mapping[int, int] = field(default_factory=dict)  # tokens of those that are computed once, by number

    def tokens(self, layout: Layout) -> int:
        """Return the number of computed tokens. Padded, each sequence has as many as the longest."""
        return self.sequences * self.longest if layout == "padded" else self.total + sum(self.prompts.values())

    def beside(self, other: "Load") -> "Load":
        """Return the load of both in one micro-batch."""
        return Load(
            sequences=self.sequences + other.sequences,
            longest=max(self.longest, other.longest),
            total=self.total + other.total,
            pictures=self.pictures | other.pictures,
            prompts={**self.prompts, **other.prompts},
        )
