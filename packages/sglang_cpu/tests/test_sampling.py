import pytest
import torch
from dagrpo_sglang_cpu.sampling import draw_in_slices


def test_slices_of_the_batch_draw_the_tokens_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagrpo_sglang_cpu.sampling.SLICE_BYTES", 8 * 50 * 4)
    sizes = []

    def draw(logprobs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        sizes.append(len(logprobs))
        return (logprobs.argmax(1) * 1000 + seed + positions)[:, None]

    logprobs, seed, positions = torch.randn(10, 50), torch.arange(10), torch.arange(10) * 3
    drawn = draw_in_slices(draw, logprobs, seed, positions)
    assert sizes == [4, 4, 2]
    assert torch.equal(drawn, draw(logprobs, seed, positions))


def test_a_vocabulary_larger_than_a_slice_is_drawn_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagrpo_sglang_cpu.sampling.SLICE_BYTES", 1)
    drawn = draw_in_slices(lambda p, s, o: p.argmax(1, keepdim=True), torch.eye(3), torch.zeros(3), torch.zeros(3))
    assert drawn.tolist() == [[0], [1], [2]]
