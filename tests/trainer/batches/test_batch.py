import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.trainer.batches.batch import Batch, PaddedBatch, TokenSequences
from dagrpo.trainer.batches.images import PaddedPictures, SequencePictures

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
