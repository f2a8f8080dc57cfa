"""Digests of tensors, and the table that keeps them."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.trainer import computed

from dagrpo.distributed import single_process
from dagrpo.errors import UserError
from dagrpo.files import read_parquet, write_parquet
from dagrpo.trainer.digest_table import StepDigests, digest_table, joint_digest, read_digests
from dagrpo.trainer.digests import gradient_digests, tensor_digests, weight_digests

COMPUTED = replace(computed.COMPUTED, micro_batch_size=8)
STEP = StepDigests(
    computed=COMPUTED,
    gradients=({"a": "0" * 64, "b": "1" * 64}, {"a": "2" * 64}),
    weights={"a": "3" * 64, "b": "4" * 64},
)


def test_a_digest_is_the_sha256_of_a_tensors_bytes() -> None:
    tensors = {"b": torch.tensor([1.0, -2.0]), "a": torch.tensor([[1, 2], [3, 4]]).T}
    # 1.0 is 0000803f in IEEE 754, least significant byte first, and -2.0 is 000000c0.
    assert tensor_digests(tensors, single_process()) == {
        "a": hashlib.sha256(b"".join(n.to_bytes(8, "little") for n in (1, 3, 2, 4))).hexdigest(),
        "b": hashlib.sha256(bytes.fromhex("0000803f000000c0")).hexdigest(),
    }


@pytest.mark.parametrize("count", [1, 4, 5, 9])
def test_every_tensor_has_its_own_digest_however_many_there_are(count: int) -> None:
    tensors = {f"t{number}": torch.tensor([number]) for number in range(count)}
    digests = tensor_digests(tensors, single_process())
    assert digests == {
        name: hashlib.sha256(number.to_bytes(8, "little")).hexdigest() for number, name in enumerate(tensors)
    }


def test_a_sign_of_zero_and_a_last_bit_change_a_digest() -> None:
    values = (0.0, -0.0, 1.0, torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item())
    seen = {tensor_digests({"a": torch.tensor([value])}, single_process())["a"] for value in values}
    assert len(seen) == 4


def test_a_weight_without_a_gradient_has_no_digest_of_one() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False))
    model[0](torch.ones(1, 2)).sum().backward()
    assert list(gradient_digests(model, single_process())) == ["0.weight"]
    assert list(weight_digests(model, single_process())) == ["0.weight", "1.weight"]


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


def test_a_table_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "digests.parquet"
    write_parquet(path, digest_table({1: STEP}))
    write_parquet(path, read_parquet(path).slice(0, 3))
    with pytest.raises(UserError, match=r"the gradients and weights of step 1 are not whole"):
        read_digests(path)
