"""Micro-batches of each rank: limits of a forward pass, and the cut.

The cut changes speed, memory and the last bits of sums, but no result: the loss of a mini-batch is a sum over its tokens. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagrpo.trainer.config.runtime import Layout, Reduction, SftRuntime, TrainingRuntime

if TYPE_CHECKING:
    from dagrpo.trainer.batches.batch import TokenSequences

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


Part = tuple[int, ...]  # the numbers of a micro-batch's sequences
NOTHING: Part = ()  # a micro-batch without sequences


class MicroBatchSplitter:
    """Splitter of trajectories into micro-batches. A span is one trajectory: its sequences, which stay together."""

    def __init__(self, sequences: "TokenSequences", budget: Budget, patches: Sequence[int] = ()) -> None:
        """Cut by `budget`. `patches`: those of each picture of `sequences.pictures`, if the budget limits them."""
        self._lengths: list[int] = sequences.lengths.tolist()
        self._prompts = sequences.prompt_numbers
        self._prompt_lengths = sequences.prompt_lengths
        self._budget = budget
        self._patches = patches
        self._places = sequences.pictures.places if sequences.pictures is not None and patches else None

    def arrange(self, spans: Sequence[slice], ranks: int) -> list[slice]:
        """Return the spans in cutting order: each rank's share from the longest to the shortest.

        So neighbours need little padding, and the largest memory is needed first. Equally long ones stay in order, and so
        does a share that is one micro-batch anyway. With shared prompts, sequences of the same prompt stay together.
        """
        return [span for share in _shares(spans, ranks) for span in self._in_order(share)]

    def micro_batches(self, spans: Sequence[slice], rank: int, ranks: int) -> list[Part]:
        """Return a rank's share of the spans, cut between neighbours.

        Every rank has the same number of micro-batches, as FSDP needs: NOTHING fills the missing ones.
        """
        cut = [self._cut(share) for share in _shares(spans, ranks)]
        own = [tuple(number for span in part for number in range(span.start, span.stop)) for part in cut[rank]]
        return [*own, *[NOTHING] * (max(map(len, cut)) - len(own))]

    def _in_order(self, share: Sequence[slice]) -> Sequence[slice]:
        if len(self._cut(share)) <= 1:
            return share
        if not self._budget.share_prompts:
            return sorted(share, key=lambda span: -self._load(span).longest)
        longest: dict[int, int] = {}
        for span in share:
            prompt = self._prompts[span.start]
            longest[prompt] = max(longest.get(prompt, 0), max(self._lengths[span]))
        return sorted(share, key=lambda span: (-longest[self._prompts[span.start]], self._prompts[span.start]))

    def _cut(self, share: Sequence[slice]) -> list[list[slice]]:
        """Join neighbours as long as they are within the budget together."""
        parts: list[list[slice]] = []
        load: Load | None = None
        for span in share:
            own = self._load(span)
            joined = own if load is None else load.beside(own)
            if load is not None and self._is_within(joined):
                parts[-1].append(span)
                load = joined
            else:
                parts.append([span])
                load = own
        return parts

    def _load(self, span: slice) -> Load:
        places = () if self._places is None else self._places[span]
        pictures = frozenset(place for own in places for place in own)
        sequences, lengths = span.stop - span.start, self._lengths[span]
        if not self._budget.share_prompts:
            return Load(sequences=sequences, longest=max(lengths), total=sum(lengths), pictures=pictures)
        before = [length - 1 for length in self._prompt_lengths[span]]
        after = [length - own for length, own in zip(lengths, before, strict=True)]
        return Load(
            sequences=sequences,
            longest=max(after),
            total=sum(after),
            pictures=pictures,
            prompts=dict(zip(self._prompts[span], before, strict=True)),
        )

    def _is_within(self, load: Load) -> bool:
        most = self._budget
        patches = sum(self._patches[number] for number in load.pictures)
        return (
            load.sequences <= most.sequences
            and (most.tokens is None or load.tokens(most.layout) <= most.tokens)
            and (most.patches is None or patches <= most.patches)
        )


def _shares(spans: Sequence[slice], ranks: int) -> list[Sequence[slice]]:
    """Return the spans of each rank, whose numbers differ by at most one."""
    total = len(spans)
    return [spans[total * rank // ranks : total * (rank + 1) // ranks] for rank in range(ranks)]
