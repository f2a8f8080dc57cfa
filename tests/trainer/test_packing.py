from hypothesis import given
from hypothesis import strategies as st

from dagrpo.trainer.packing import pad, prompt_indices, slices

tokens = st.lists(st.integers(1, 90), min_size=1, max_size=9)


def test_a_small_batch_is_padded_as_written_by_hand() -> None:
    batch = pad([[5, 6], [7]], [[8], [9, 10]], pad_token_id=0)
    assert batch.input_ids.tolist() == [[5, 6, 8], [7, 9, 10]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert batch.completion_mask.tolist() == [[False, False, True], [False, True, True]]
    assert batch.rows.tolist() == [0, 1, 1]


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=8))
def test_every_completion_token_is_masked_in_once_and_nothing_else_is(pairs: list[tuple[list[int], list[int]]]) -> None:
    batch = pad([p for p, _ in pairs], [c for _, c in pairs], pad_token_id=0)
    for row, (prompt, completion) in enumerate(pairs):
        kept = batch.input_ids[row][batch.attention_mask[row].bool()]
        assert kept.tolist() == prompt + completion
        assert batch.input_ids[row][batch.completion_mask[row]].tolist() == completion


@given(st.integers(0, 9), st.integers(1, 40), st.integers(1, 8))
def test_every_prompt_comes_once_per_epoch(seed: int, total: int, count: int) -> None:
    drawn = [index for step in range(2 * total) for index in prompt_indices(seed, step, count, total)]
    for epoch in range(len(drawn) // total):
        assert sorted(drawn[epoch * total : (epoch + 1) * total]) == list(range(total))


def test_another_seed_gives_another_order_and_the_same_seed_the_same() -> None:
    first = prompt_indices(0, 3, 16, 1000)
    assert first == prompt_indices(0, 3, 16, 1000)
    assert first != prompt_indices(1, 3, 16, 1000)


@given(st.integers(0, 50), st.integers(1, 20))
def test_slices_cover_everything_once(total: int, size: int) -> None:
    assert [i for s in slices(total, size) for i in range(total)[s]] == list(range(total))


def test_a_curriculum_goes_from_easy_to_hard_in_every_epoch_and_shuffles_equals() -> None:
    rates = [0.25, 1.0, 0.5, 1.0, 0.0, 0.5]
    epochs = [prompt_indices(7, step, 6, 6, rates) for step in range(20)]
    assert all([rates[index] for index in epoch] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.0] for epoch in epochs)
    assert {tuple(epoch[:2]) for epoch in epochs} == {(1, 3), (3, 1)}
    assert epochs == [prompt_indices(7, step, 6, 6, rates) for step in range(20)]


def test_a_curriculum_spans_steps_as_an_epoch_does() -> None:
    rates = [float(index) for index in range(10)]
    assert [prompt_indices(0, step, 4, 10, rates) for step in range(3)] == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0, 9, 8]]
