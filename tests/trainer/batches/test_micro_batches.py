"""Batches, and how a mini-batch is cut: within its budget, between trajectories, every sequence once."""

import itertools
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.trainer.batches.batch import Batch, PaddedBatch, TokenSequences
from dagrpo.trainer.batches.images import PaddedPictures, SequencePictures
from dagrpo.trainer.batches.micro_batches import NOTHING, Budget, MicroBatchSplitter, Part

CPU = torch.device("cpu")
tokens = st.lists(st.integers(1, 90), min_size=1, max_size=9)
masks = st.lists(st.booleans(), min_size=1, max_size=9).filter(any)


def test_a_small_batch_is_padded_as_written_by_hand() -> None:
    sequences = TokenSequences.of([[5, 6, 8], [7, 9]], [[False, False, True], [False, True]])
    batch = sequences.padded(range(2), 0, CPU)
    assert batch.input_ids.tolist() == [[5, 6, 8], [7, 9, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.rows.tolist() == [0, 1]
    assert batch.columns.tolist() == [1, 0]
    assert batch.targets.tolist() == [8, 9]
    assert sequences.trained == [1, 1]


@given(st.lists(st.tuples(tokens, masks), min_size=1, max_size=8), st.data())
def test_every_trained_token_is_predicted_from_the_one_before_it_and_no_other_is(
    drawn: list[tuple[list[int], list[bool]]], data: st.DataObject
) -> None:
    pairs = [([*prompt, *range(100, 100 + len(mask))], [False] * len(prompt) + mask) for prompt, mask in drawn]
    first = data.draw(st.integers(0, len(pairs) - 1))
    batch = TokenSequences.of([p for p, _ in pairs], [m for _, m in pairs]).padded(range(first, len(pairs)), 0, CPU)
    for row, (ids, mask) in enumerate(pairs[first:]):
        assert batch.input_ids[row][batch.attention_mask[row].bool()].tolist() == ids
        assert batch.targets[batch.rows == row].tolist() == [t for t, trained in zip(ids, mask, strict=True) if trained]
    assert torch.equal(batch.input_ids[batch.rows, batch.columns + 1], batch.targets)


def test_a_batch_that_was_taken_apart_for_other_ranks_is_put_together_again() -> None:
    sequences = TokenSequences.of([[5, 6, 8], [7, 9]], [[False, False, True], [False, True]])
    batch = Batch(
        sequences=sequences,
        trajectories=torch.tensor([2, 2]),
        rollout_logprobs=torch.tensor([-0.5, -1.5]),
        positive=torch.tensor([True, False]),
    )
    again = Batch.from_tensors(batch.tensors())
    assert again.sequences.trained == [1, 1]
    assert torch.equal(again.rollout_logprobs, batch.rollout_logprobs)
    assert torch.equal(again.sequences.token_ids, sequences.token_ids)


def _batch_at(places: list[int]) -> Batch:
    return Batch(
        sequences=TokenSequences.of([[1, 2]] * len(places), [[False, True]] * len(places)),
        trajectories=torch.tensor(places, dtype=torch.int64),
        rollout_logprobs=torch.zeros(len(places)),
        positive=torch.zeros(len(places), dtype=torch.bool),
    )


def test_the_sequences_of_a_trajectory_are_one_span_and_what_is_left_out_has_none() -> None:
    batch = _batch_at([0, 2, 2, 5])
    assert batch.spans(0, 3) == [slice(0, 1), slice(1, 3)]
    assert batch.spans(3, 5) == []
    assert batch.spans(3, 6) == [slice(3, 4)]
    assert _batch_at([]).spans(0, 6) == []


def test_a_filler_has_one_token_to_predict() -> None:
    filler = PaddedBatch.filler(3, CPU)
    assert filler.input_ids.tolist() == [[3, 3]]
    assert filler.targets.tolist() == filler.input_ids[filler.rows, filler.columns + 1].tolist() == [3]


files = st.lists(st.lists(st.binary(min_size=1, max_size=5), max_size=3), max_size=6)


def test_pictures_of_three_sequences_are_kept_once_each_in_the_order_in_which_they_are_shown() -> None:
    pictures = SequencePictures.of([(b"a",), (), (b"b", b"a")])
    assert pictures == SequencePictures(files=(b"a", b"b"), places=((0,), (), (1, 0)))
    assert pictures.padded(range(3)) == PaddedPictures(files=(b"a", b"b"), places=(0, 1, 0))
    assert pictures.padded(range(2, 3)) == PaddedPictures(files=(b"b", b"a"), places=(0, 1))
    assert pictures.padded(range(1, 2)) is None


def test_sequences_without_pictures_have_none() -> None:
    assert SequencePictures.of([]) is None
    assert SequencePictures.of([(), ()]) is None
    assert SequencePictures.from_tensors({}) is None


@given(files)
def test_every_sequence_shows_its_own_pictures_also_after_they_were_sent_to_other_ranks(
    drawn: list[list[bytes]],
) -> None:
    pictures = SequencePictures.of(drawn)
    if pictures is None:
        assert not any(drawn)
        return
    assert SequencePictures.from_tensors(pictures.tensors()) == pictures
    for row, own in enumerate(drawn):
        padded = pictures.padded(range(row, row + 1))
        assert [padded.files[place] for place in padded.places] == own if padded else not own


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
