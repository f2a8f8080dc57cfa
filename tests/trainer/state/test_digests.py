"""Digests of tensors, and the table that keeps them."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import computed
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from dagrpo.engine.sglang.digests import digest_on_gpu
from dagrpo.trainer.state.digest_table import StepDigests, TensorDigests, digest_table, joint_digest, read_digests
from dagrpo.trainer.state.digests import (
    PendingDigests,
    gradient_digests,
    pending_digests,
    read,
    recorded_every,
    usual_hash,
    weight_digests,
)
from dagrpo.utils.distributed import World, single_process
from dagrpo.utils.tables import write_parquet

COMPUTED = replace(computed.COMPUTED, micro_batch_size=8)
STEP = StepDigests(
    computed=COMPUTED,
    gradients=({"a": "0" * 64, "b": "1" * 64}, {"a": "2" * 64}),
    weights={"a": "3" * 64, "b": "4" * 64},
)


def _sha256(tensors: Mapping[str, torch.Tensor]) -> TensorDigests:
    (digests,) = read([pending_digests(tensors, single_process(), "sha256")], single_process())
    return digests


def test_a_digest_is_the_sha256_of_a_tensors_bytes() -> None:
    tensors = {"b": torch.tensor([1.0, -2.0]), "a": torch.tensor([[1, 2], [3, 4]]).T}
    # 1.0 is 0000803f in IEEE 754, least significant byte first, and -2.0 is 000000c0.
    assert _sha256(tensors) == {
        "a": hashlib.sha256(b"".join(n.to_bytes(8, "little") for n in (1, 3, 2, 4))).hexdigest(),
        "b": hashlib.sha256(bytes.fromhex("0000803f000000c0")).hexdigest(),
    }


@pytest.mark.parametrize(
    ("parameters", "every", "recorded"),
    [(100_000_000, None, 40), (100_000_001, None, 2), (7_000_000_000, None, 2), (7_000_000_000, 1, 40), (1, 0, 0)],
)
def test_a_large_model_is_hashed_in_few_steps_unless_more_are_asked_for(
    parameters: int, every: int | None, recorded: int
) -> None:
    rhythm = recorded_every(parameters, every)
    assert sum(rhythm > 0 and step % rhythm == 0 for step in range(1, 41)) == recorded


def test_a_weight_without_a_gradient_has_no_digest_of_one() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False))
    model[0](torch.ones(1, 2)).sum().backward()
    assert gradient_digests(model, single_process(), "sha256").names == ("0.weight",)
    assert weight_digests(model, single_process(), "sha256").names == ("0.weight", "1.weight")


def test_a_hash_of_a_gpu_is_the_same_on_a_cpu_and_is_shared_among_ranks() -> None:
    tensors = {"b": torch.arange(20_000), "a": torch.ones(3).bfloat16(), "c": torch.ones(4).bfloat16()[1:]}
    ranks = [World(rank=rank, size=2, device=torch.device("cpu")) for rank in range(2)]
    parts = [pending_digests(tensors, rank, "gpu_tensor_hash") for rank in ranks]
    assert [part.words[:, 0].ne(0).tolist() for part in parts] == [[True, False, True], [False, True, False]]
    whole = PendingDigests(parts[0].names, parts[0].words + parts[1].words)
    assert read([whole], single_process()) == [{name: digest_on_gpu(tensors[name]) for name in "abc"}]


class _WaitsForGpu(TorchDispatchMode):
    """Counts what a made-up GPU hands to the CPU; it hands over zeros."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        result = operation(*arguments, **(named or {}))
        given = [each.device.type for each in arguments if isinstance(each, torch.Tensor)]
        self.count += operation is torch.ops.aten._local_scalar_dense.default
        if "cuda" in given and isinstance(result, torch.Tensor) and result.device.type == "cpu":
            self.count += 1
            with unset_fake_temporarily():
                return torch.zeros(result.shape, dtype=result.dtype)
        return result


@pytest.mark.parametrize("words", [10, 1 << 20])
def test_a_step_waits_for_its_digests_once_whatever_the_size_of_its_tensors(words: int) -> None:
    world = World(rank=0, size=1, device=torch.device("cuda"))
    assert usual_hash(world) == "gpu_tensor_hash"
    with FakeTensorMode(), _WaitsForGpu() as waits:
        weights = [torch.nn.Parameter(torch.empty(words, device="cuda")) for _ in range(3)]
        model = torch.nn.ParameterList(weights)
        for parameter in weights:
            parameter.grad = torch.empty_like(parameter)
        pending = [gradient_digests(model, world, "gpu_tensor_hash") for _ in range(2)]
        pending.append(weight_digests(model, world, "gpu_tensor_hash"))
        assert waits.count == 0
        assert [len(digests) for digests in read(pending, world)] == [3, 3, 3]
    assert waits.count == 1


def test_the_joint_digest_does_not_depend_on_the_order_of_the_tensors() -> None:
    assert joint_digest({"a": "x", "b": "y"}) == hashlib.sha256(b"x  a\ny  b\n").hexdigest()
    assert (
        joint_digest({"b": "y", "a": "x"}) == joint_digest({"a": "x", "b": "y"}) != joint_digest({"a": "y", "b": "x"})
    )


def test_digests_are_read_as_they_were_written(tmp_path: Path) -> None:
    steps = {1: STEP, 2: replace(STEP, gradients=STEP.gradients[:1], computed=replace(COMPUTED, processes=2))}
    steps[3] = replace(STEP, gradients=(), weights={})
    write_parquet(tmp_path / "digests.parquet", digest_table(steps))
    assert read_digests(tmp_path / "digests.parquet") == steps
