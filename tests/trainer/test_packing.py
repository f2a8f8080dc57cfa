import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.trainer.packing import RolloutBatch, TokenSequences, micro_batches, slices

CPU = torch.device("cpu")
tokens = st.lists(st.integers(1, 90), min_size=1, max_size=9)
masks = st.lists(st.booleans(), min_size=1, max_size=9).filter(any)


def test_a_small_batch_is_padded_as_written_by_hand() -> None:
    sequences = TokenSequences.of([[5, 6, 8], [7, 9]], [[False, False, True], [False, True]])
    batch = sequences.padded(slice(0, 2), 0, CPU)
    assert batch.input_ids.tolist() == [[5, 6, 8], [7, 9, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.rows.tolist() == [0, 1]
    assert batch.columns.tolist() == [1, 0]
    assert batch.targets.tolist() == [8, 9]
    assert sequences.trained == [1, 1]


def test_a_mask_with_a_hole_trains_the_tokens_on_both_sides_of_it() -> None:
    """Two turns of the policy (8 and 4, 5) around a tool's output (6, 7)."""
    sequences = TokenSequences.of([[3, 8, 6, 7, 4, 5]], [[False, True, False, False, True, True]])
    batch = sequences.padded(slice(0, 1), 0, CPU)
    assert batch.targets.tolist() == [8, 4, 5]
    assert batch.columns.tolist() == [0, 3, 4]
    assert sequences.trained == [3]


@given(st.lists(st.tuples(tokens, masks), min_size=1, max_size=8), st.data())
def test_every_trained_token_is_predicted_from_the_one_before_it_and_no_other_is(
    drawn: list[tuple[list[int], list[bool]]], data: st.DataObject
) -> None:
    pairs = [([*prompt, *range(100, 100 + len(mask))], [False] * len(prompt) + mask) for prompt, mask in drawn]
    first = data.draw(st.integers(0, len(pairs) - 1))
    batch = TokenSequences.of([p for p, _ in pairs], [m for _, m in pairs]).padded(slice(first, len(pairs)), 0, CPU)
    for row, (ids, mask) in enumerate(pairs[first:]):
        assert batch.input_ids[row][batch.attention_mask[row].bool()].tolist() == ids
        assert batch.targets[batch.rows == row].tolist() == [t for t, trained in zip(ids, mask, strict=True) if trained]
    assert torch.equal(batch.input_ids[batch.rows, batch.columns + 1], batch.targets)


def test_a_sequence_whose_first_token_is_trained_is_refused() -> None:
    with pytest.raises(AssertionError, match="nothing predicts"):
        TokenSequences.of([[1, 2], [3, 4]], [[False, True], [True, True]])


def test_a_sequence_without_a_trained_token_is_refused() -> None:
    with pytest.raises(AssertionError, match="without a trained token"):
        TokenSequences.of([[1, 2], [3, 4]], [[False, True], [False, False]])


def test_a_batch_that_was_taken_apart_for_other_ranks_is_put_together_again() -> None:
    sequences = TokenSequences.of([[5, 6, 8], [7, 9]], [[False, False, True], [False, True]])
    batch = RolloutBatch(
        sequences=sequences, rollout_logprobs=torch.tensor([-0.5, -1.5]), advantages=torch.tensor([1.0, -1.0])
    )
    again = RolloutBatch.from_tensors(batch.tensors())
    assert again.sequences.trained == [1, 1]
    assert torch.equal(again.rollout_logprobs, batch.rollout_logprobs)
    assert torch.equal(again.sequences.token_ids, sequences.token_ids)


@given(st.integers(0, 50), st.integers(1, 20))
def test_slices_cover_everything_once(total: int, size: int) -> None:
    assert [i for s in slices(total, size) for i in range(total)[s]] == list(range(total))


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 4), st.integers(0, 9))
def test_ranks_share_a_mini_batch_in_equally_many_micro_batches(part: int, size: int, ranks: int, start: int) -> None:
    span = slice(start, start + part * ranks)
    shares = [list(micro_batches(span, size, rank, ranks)) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    covered = [i for share in shares for s in share for i in range(100)[s]]
    assert covered == list(range(span.start, span.stop))
