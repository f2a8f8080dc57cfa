"""How a mini-batch is cut: within its budget, between trajectories, every sequence once."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.batches.images import SequencePictures
from dagrpo.trainer.batches.micro_batches import NOTHING, Budget, MicroBatchSplitter, Part


def _splitter(lengths: list[int], **budget: Any) -> MicroBatchSplitter:
    masks = [[False] * (length - 1) + [True] for length in lengths]
    return MicroBatchSplitter(
        TokenSequences.of([[5] * length for length in lengths], masks), Budget(**{"sequences": 99, **budget})
    )


def _spans(*counts: int, start: int = 0) -> list[slice]:
    """Trajectories of so many sequences each."""
    return [slice(*ends) for ends in itertools.pairwise(itertools.accumulate(counts, initial=start))]


def test_an_odd_number_of_trajectories_is_shared_as_written_by_hand() -> None:
    splitter, spans = _splitter([2] * 6, sequences=2), _spans(1, 3, 1, 1)  # the second trajectory has three sequences
    assert splitter.micro_batches(spans, 0, 1) == [(0,), (1, 2, 3), (4, 5)]
    assert [splitter.micro_batches(spans, rank, 3) for rank in range(3)] == [[(0,)], [(1, 2, 3)], [(4, 5)]]
    assert [splitter.micro_batches(spans[:2], rank, 3) for rank in range(3)] == [[NOTHING], [(0,)], [(1, 2, 3)]]


def test_tokens_count_with_their_padding_and_a_longer_sequence_is_alone() -> None:
    """At most 12 tokens: 3 rows of 4; 13 alone; 2 rows padded to 6, where a third would make 18."""
    assert _splitter([4, 3, 2, 13, 6, 2, 2], tokens=12).micro_batches(_spans(*[1] * 7), 0, 1) == [
        (0, 1, 2),
        (3,),
        (4, 5),
        (6,),
    ]


def test_what_is_cut_is_sorted_from_long_to_short_in_each_ranks_share_and_equals_keep_their_order() -> None:
    spans = _spans(*[1] * 6)
    splitter = _splitter([3, 5, 3, 2, 4, 4], sequences=2)
    assert [span.start for span in splitter.arrange(spans, 1)] == [1, 4, 5, 0, 2, 3]
    assert [span.start for span in splitter.arrange(spans, 2)] == [1, 0, 2, 4, 5, 3]
    assert splitter.micro_batches(splitter.arrange(spans, 1), 0, 1) == [(1, 4), (5, 0), (2, 3)]


def test_one_micro_batch_stays_in_order() -> None:
    spans = _spans(*[1] * 4)
    assert _splitter([2, 5, 3, 4]).arrange(spans, 1) == spans
    assert _splitter([2, 5, 3, 4], sequences=2).arrange(spans, 2) == spans


def test_a_picture_counts_once_however_many_sequences_show_it() -> None:
    """Pictures of 4, 8 and 16 patches, at most 12 a micro-batch: the samples of one problem share theirs."""
    shown = [(b"a",), (b"a",), (b"a", b"b"), (b"c",), (), (b"b",)]
    sequences = TokenSequences.of([[5, 6]] * 6, [[False, True]] * 6, shown)
    splitter = MicroBatchSplitter(sequences, Budget(sequences=99, patches=12), [4, 8, 16])
    assert splitter.micro_batches(_spans(*[1] * 6), 0, 1) == [(0, 1, 2), (3,), (4, 5)]
    assert isinstance(sequences.pictures, SequencePictures)
    assert sequences.pictures.files == (b"a", b"b", b"c")


@given(
    st.lists(st.lists(st.integers(2, 9), min_size=1, max_size=3), max_size=12),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(1, 4),
)
def test_ranks_share_all_sequences_in_equally_many_micro_batches_within_the_budget(
    lengths: list[list[int]], size: int, tokens: int, ranks: int
) -> None:
    flat, spans = [*itertools.chain.from_iterable(lengths)], _spans(*map(len, lengths))
    splitter = _splitter(flat, sequences=size, tokens=tokens) if flat else _splitter([2])
    arranged = splitter.arrange(spans, ranks)
    shares = [splitter.micro_batches(arranged, rank, ranks) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(number for share in shares for part in share for number in part) == [*range(len(flat))]
    whole = [tuple(range(span.start, span.stop)) for span in spans]
    for part in (part for share in shares for part in share if part != NOTHING):
        assert part in whole or _is_within(part, flat, size, tokens)
        assert all(set(trajectory) <= set(part) for trajectory in whole if set(trajectory) & set(part)), "one is cut"


def _is_within(part: Part, lengths: list[int], size: int, tokens: int) -> bool:
    return len(part) <= size and len(part) * max(lengths[number] for number in part) <= tokens
