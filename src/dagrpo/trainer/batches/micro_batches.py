"""Micro-batches of each rank, cut from a mini-batch's trajectories.

The cut changes speed, memory and the last bits of sums, but no result: the loss of a mini-batch is a sum over its tokens.
"""

from collections.abc import Sequence

from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.batches.budget import Budget, Load

Part = tuple[int, ...]  # the numbers of a micro-batch's sequences
NOTHING: Part = ()  # a micro-batch without sequences


class MicroBatchSplitter:
    """Splitter of trajectories into micro-batches. A span is one trajectory: its sequences, which stay together."""

    def __init__(self, sequences: TokenSequences, budget: Budget, patches: Sequence[int] = ()) -> None:
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
