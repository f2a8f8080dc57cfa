from collections.abc import Iterator
from typing import Any

import pytest
import torch
from dagrpo_sglang_cpu.attention import BatchedAttention, attend, group_requests
from torch.nn.functional import scaled_dot_product_attention

HEADS, SHARED, SIZE, SLOTS, CONTEXT = 6, 3, 16, 2000, 100


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the server: more threads round differently at another batch size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Batch:
    """Random requests over a random key-value cache."""

    def __init__(self, new: list[int], total: list[int], dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(sum(new) + sum(total))
        self.new, self.total = torch.tensor(new), torch.tensor(total)
        self.slots = torch.randperm(SLOTS, generator=generator)[: len(new) * CONTEXT].view(-1, CONTEXT)
        self.keys = torch.randn(SLOTS, HEADS // SHARED, SIZE, generator=generator).to(dtype)
        self.values = torch.randn(SLOTS, HEADS // SHARED, SIZE, generator=generator).to(dtype)
        self.query = torch.randn(sum(new), HEADS, SIZE, generator=generator).to(dtype)

    def batched(self, requests: slice = slice(None)) -> torch.Tensor:
        new, total = self.new[requests], self.total[requests]
        query = self.query[: int(new.sum())]
        groups = group_requests(self.slots[requests], new, total, HEADS, SHARED)
        return attend(groups, query, torch.empty_like(query), self.keys, self.values, None)

    def queries(self) -> list[torch.Tensor]:
        ends = self.new.cumsum(0).tolist()
        return [self.query[end - new : end] for end, new in zip(ends, self.new.tolist(), strict=True)]

    def looped(self) -> torch.Tensor:
        """As SGLang does it, in double."""
        rows = []
        for slots, query, total in zip(self.slots, self.queries(), self.total, strict=True):
            visible = torch.ones(len(query), int(total), dtype=torch.bool).tril(int(total) - len(query))
            keys, values = (
                cache[slots[:total]].transpose(0, 1) for cache in (self.keys.double(), self.values.double())
            )
            attention = scaled_dot_product_attention(
                query.double().transpose(0, 1), keys, values, visible, enable_gqa=True
            )
            rows.append(attention.transpose(0, 1))
        return torch.cat(rows)


BATCHES = {
    "decode": ([1] * 9, [1, 2, 31, 32, 33, 64, 65, 99, 100]),
    "prompts": ([1, 5, 32, 33, 100], [1, 5, 32, 33, 100]),
    "prompts behind a cached prefix": ([1, 5, 32, 33, 7], [40, 50, 32, 99, 100]),
    "one request": ([1], [17]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_at_once_equals_a_loop_over_its_requests(name: str) -> None:
    batch = Batch(*BATCHES[name])
    torch.testing.assert_close(batch.batched().double(), batch.looped(), atol=2e-6, rtol=0)


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_in_fewer_bits_it_is_as_near_to_the_exact_result_as_they_allow(dtype: torch.dtype, rounding: float) -> None:
    """The largest value of the cache is about 4: weights and result are rounded once each."""
    batch = Batch(*BATCHES["decode"], dtype)
    torch.testing.assert_close(batch.batched().double(), batch.looped(), atol=4 * rounding, rtol=0)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_request_does_not_feel_its_neighbours(name: str, dtype: torch.dtype) -> None:
    batch = Batch(*BATCHES[name], dtype)
    alone = batch.batched(slice(0, 1))
    assert torch.equal(batch.batched()[: len(alone)], alone)


def test_a_large_batch_is_cut_to_bound_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch([1] * 9, [50] * 9)
    whole = batch.batched()
    monkeypatch.setattr("dagrpo_sglang_cpu.attention.MAX_SCORES", HEADS * 64 * 4)
    groups = group_requests(batch.slots, batch.new, batch.total, HEADS, SHARED)
    assert [group.requests for group in groups] == [4, 4, 1]
    assert torch.equal(batch.batched(), whole)


def test_the_hooks_group_once_per_forward_pass_and_leave_other_attention_to_sglang() -> None:
    batch, hooks = Batch([1, 1], [3, 9]), BatchedAttention()
    arguments = (batch.query, torch.empty_like(batch.query), batch.keys, batch.values, batch.slots, torch.arange(2))
    options: dict[str, Any] = {"scaling": None, "causal": False, "sliding_window_size": None}

    def loop(*args: object, **kwargs: object) -> torch.Tensor:
        return torch.tensor(7.0)

    assert torch.equal(hooks.decode(loop, None, *arguments, batch.total, **options), batch.batched())
    known = hooks._groups
    hooks.decode(loop, None, *arguments, batch.total, **options)
    assert hooks._groups is known
    hooks.forget()
    assert hooks._groups is None
    sliding = options | {"sliding_window_size": 4}
    assert hooks.decode(loop, None, *arguments, batch.total, **sliding).item() == 7.0
    lengths = (batch.total, batch.total - batch.new, batch.new)
    assert hooks.extend(loop, None, *arguments, *lengths, **options).item() == 7.0  # encoders are not causal
