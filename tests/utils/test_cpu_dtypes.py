"""A type of 16 bits that this CPU is slow in is told, by the parameters that ask for it."""

import pytest
import torch

from dagrpo.utils import cpu_dtypes
from dagrpo.utils.cpu_dtypes import times_as_long, warn_of_slow_types, warning
from dagrpo.utils.distributed import World, single_process

BOTH = {"training.dtype": "bfloat16", "rollout.dtype": "float32"}


def _taking(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
    monkeypatch.setattr(cpu_dtypes, "_seconds", seconds.__getitem__)


def test_the_slowest_of_several_types_gives_the_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    _taking(monkeypatch, {"float32": 1.0, "bfloat16": 2.0, "float16": 7.0})
    told = warning({"training.dtype": "bfloat16", "sft.dtype": "float16"})
    assert told is not None
    assert "training.dtype (bfloat16) and sft.dtype (float16): a matrix product takes 7.0 times" in told


def test_nothing_is_told_of_a_type_that_is_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    _taking(monkeypatch, {"float32": 1.0, "bfloat16": 1.4})
    assert warning(BOTH) is None


def test_a_type_is_compared_with_float32_by_a_real_product() -> None:
    assert times_as_long("float32") > 0
    assert times_as_long("bfloat16") > 0


@pytest.mark.parametrize(("rank", "device", "is_told"), [(0, "cpu", True), (1, "cpu", False), (0, "meta", False)])
def test_only_rank_zero_on_a_cpu_says_it(
    rank: int, device: str, is_told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _taking(monkeypatch, {"float32": 1.0, "bfloat16": 9.0})
    world = single_process() if rank == 0 and device == "cpu" else World(rank=rank, size=2, device=torch.device(device))
    warn_of_slow_types(BOTH, world)
    assert ("9.0 times as long" in capsys.readouterr().err) is is_told
