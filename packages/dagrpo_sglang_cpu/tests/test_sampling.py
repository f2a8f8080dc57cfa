"""Seeded sampling against SGLang's own formula over the whole vocabulary."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from dagrpo_sglang_cpu import sampling
from dagrpo_sglang_cpu.sampling import draw, draw_from_probs, draw_in_slices
from hypothesis import given, settings
from hypothesis import strategies as st

from dagrpo.utils.murmur import murmur_hash32

LARGEST = 2**32 - 1


def plain(probs: torch.Tensor, hashed: torch.Tensor) -> list[int]:
    """As sglang.srt.layers.sampler.multinomial_with_seed, from the hashes on."""
    x = hashed.to(torch.float64) / torch.iinfo(torch.uint32).max
    x.log_().clamp_(min=torch.finfo(x.dtype).min, max=-(2.0**-32)).neg_()
    x.log_().neg_()
    x.add_(torch.log(probs).to(torch.float64))
    return [int(token) for token in torch.argmax(x, dim=1)]


def refuse(*arguments: object) -> torch.Tensor:
    raise AssertionError("there is a way of our own")


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 6),
    vocabulary=st.integers(1, 700),
    spread=st.sampled_from([0.0, 0.1, 1.0, 5.0, 30.0, 300.0]),
    cut=st.floats(0, 1),
)
def test_the_token_is_the_one_that_the_whole_vocabulary_in_float64_gives(
    seed: int, rows: int, vocabulary: int, spread: float, cut: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator) * spread
    probs = torch.softmax(logits, dim=1)
    probs[torch.rand(rows, vocabulary, generator=generator) < cut] = 0.0
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
    positions = torch.randint(0, 5000, (rows,), generator=generator)
    hashed = murmur_hash32(seeds, positions, torch.arange(vocabulary))
    assert draw_from_probs(refuse, probs, seeds, positions).tolist() == plain(probs, hashed)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1e-45, 1e-38, 1e-30, 1e-20, 1e-7, 0.1, 0.1000001, 0.3, 1.0, float("nan")]),
            st.sampled_from([0, 1, 2, 2**31, LARGEST - 1000, LARGEST - 2, LARGEST - 1, LARGEST]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_edges_of_hashes_and_probabilities_give_the_token_of_the_whole(pairs: list[tuple[float, int]]) -> None:
    probs = torch.tensor([[probability for probability, _ in pairs]])
    hashed = np.array([[word for _, word in pairs]], np.uint32)
    assert draw(probs, hashed).tolist() == plain(probs, torch.from_numpy(hashed))


def test_few_tokens_of_a_large_vocabulary_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be no faster than the whole."""
    scored, original = [], sampling._scores

    def counted(logprobs: np.ndarray, hashed: np.ndarray) -> np.ndarray:
        scored.append(logprobs.size)
        return original(logprobs, hashed)

    monkeypatch.setattr(sampling, "_scores", counted)
    probs = torch.softmax(torch.randn(16, 50_000, generator=torch.Generator().manual_seed(1)), dim=1)
    draw_from_probs(refuse, probs, torch.arange(16), torch.arange(16))
    assert sum(scored) < 16 * 10


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0]).expand(20_000, -1).contiguous()
    drawn = draw_from_probs(refuse, probs, torch.arange(20_000), torch.full((20_000,), 7))
    assert (drawn.bincount(minlength=5) / 20_000).tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05, 0.0], abs=0.02)


def test_a_row_is_drawn_as_it_would_be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = torch.softmax(torch.randn(9, 50, generator=torch.Generator().manual_seed(2)), dim=1)
    seeds, positions = torch.arange(9), torch.arange(9) * 3
    whole = draw_from_probs(refuse, probs, seeds, positions)
    monkeypatch.setattr("dagrpo_sglang_cpu.sampling.SLICE_TOKENS", 4 * 50)
    assert torch.equal(draw_from_probs(refuse, probs, seeds, positions), whole)
    alone = [draw_from_probs(refuse, probs[i : i + 1], seeds[i : i + 1], positions[i : i + 1]) for i in range(9)]
    assert torch.equal(torch.cat(alone), whole)


def test_without_a_seed_sglang_draws() -> None:
    drawn = torch.tensor([3], dtype=torch.int32)
    assert draw_from_probs(lambda probs, seed, positions: drawn, torch.ones(1, 4)) is drawn


def test_slices_of_the_batch_draw_the_tokens_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagrpo_sglang_cpu.sampling.SLICE_TOKENS", 50 * 4)
    sizes = []

    def by_sum(logprobs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        sizes.append(len(logprobs))
        return (logprobs.argmax(1) * 1000 + seed + positions)[:, None]

    logprobs, seed, positions = torch.randn(10, 50), torch.arange(10), torch.arange(10) * 3
    drawn = draw_in_slices(by_sum, logprobs, seed, positions)
    assert sizes == [4, 4, 2]
    assert torch.equal(drawn, by_sum(logprobs, seed, positions))


@pytest.mark.parametrize("size", [1, 50])
def test_a_vocabulary_larger_than_a_slice_is_drawn_row_by_row(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagrpo_sglang_cpu.sampling.SLICE_TOKENS", size)
    seeds = positions = torch.zeros(3, dtype=torch.int64)
    by_slices = draw_in_slices(lambda p, s, o: p.argmax(1, keepdim=True), torch.eye(3), seeds, positions)
    assert by_slices.tolist() == [[0], [1], [2]]
    assert draw_from_probs(refuse, torch.eye(3), seeds, positions).tolist() == [0, 1, 2]


AGAINST_SGLANG = """
import torch
from dagrpo_sglang_cpu.sampling import draw_from_probs
from sglang.srt.layers.sampler import sampling_from_probs_torch
generator = torch.Generator().manual_seed(3)
for vocabulary, spread in ((7, 1.0), (260, 3.0), (5000, 0.1), (5000, 3.0), (50_000, 2.0)):
    probs = torch.softmax(torch.randn(64, vocabulary, generator=generator) * spread, dim=1)
    seeds, positions = torch.arange(64) * 12_345_678_901, torch.arange(64) % 9
    ours = draw_from_probs(sampling_from_probs_torch, probs, seeds, positions)
    theirs = sampling_from_probs_torch(probs.clone(), seeds, positions)
    assert ours.dtype == theirs.dtype
    print(torch.equal(ours, theirs))
"""


@pytest.mark.nightly
def test_the_tokens_are_those_of_the_installed_sglang() -> None:
    environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "SGLANG_PLUGINS": "none"}
    command = [sys.executable, "-c", AGAINST_SGLANG]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"] * 5, done.stderr[-2000:]
