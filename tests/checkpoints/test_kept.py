"""Policies of chosen steps: deltas that restore them bit for bit."""

import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dagrpo.checkpoints import convert, kept
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.manifest import tensor_digest, verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.store import save_weights
from dagrpo.checkpoints.tensors import CastTensors, StateTensors, Tensors, first_difference
from dagrpo.core.errors import UserError
from dagrpo.utils.files import read_json, write_json
from dagrpo.utils.manifest import entry_of


def moved(tensors: Tensors, seed: int, dtype: torch.dtype = torch.float32) -> StateTensors:
    """Return weights of `dtype` near to others, of which some have not moved."""
    generator = torch.Generator().manual_seed(seed)
    moved = {}
    for name, spec in tensors.specs.items():
        noise = 1e-4 * torch.randn(spec.shape, generator=generator).clamp(min=0)
        moved[name] = (tensors.read(name) + noise).to(dtype)
    return StateTensors(moved)


def keep_three(folder: Path, initial: Path, dtype: torch.dtype = torch.float32) -> list[StateTensors]:
    policies = [moved(open_tensors(initial), seed, dtype) for seed in (1, 2, 3)]
    for step, policy in zip((20, 40, 60), policies, strict=True):
        kept.write(folder, initial, step, policy)
    return policies


@settings(deadline=None)
@given(st.data(), st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]))
def test_any_two_arrays_of_bits_are_encoded_and_decoded(data: st.DataObject, dtype: type) -> None:
    length = data.draw(st.integers(0, 700))
    before = data.draw(arrays.arrays(dtype, length))
    after = data.draw(st.one_of(st.just(before), arrays.arrays(dtype, length)))
    values = before.copy()
    kept.decode(values, *kept.encode(before, after))
    assert np.array_equal(values, after)


def test_a_small_change_of_few_elements_is_few_bytes() -> None:
    before = np.arange(1000, dtype=np.uint16)
    after = before.copy()
    after[[0, 255, 999]] += np.array([1, 0xFFFF, 2], dtype=np.uint16)
    # No gap; 254 equal elements; 743 of them, 2 * 255 + 233. Zigzag: 2, 1, 4; the high bytes are 0.
    assert kept.encode(before, after) == (bytes([0, 254, 255, 255, 233]), bytes([2, 1, 4, 0, 0, 0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_kept_policy_is_restored_as_a_checkpoint(pristine: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    policies = keep_three(tmp_path / "kept", pristine, dtype)
    assert kept.steps(tmp_path / "kept") == [20, 40, 60]
    for step, policy in zip((60, 20, 40), (policies[2], policies[0], policies[1]), strict=True):
        kept.restore(tmp_path / "kept", pristine, step, tmp_path / "restored")
        manifest = verify(tmp_path / "restored")
        assert manifest.format == verify(pristine).format
        assert manifest.tensors.digest == tensor_digest(policy)
        assert first_difference(policy, open_tensors(tmp_path / "restored")) is None
    config = read_json(tmp_path / "restored" / "config.json")
    assert config["dtype"] == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_of_any_type_and_shape_keep_their_bits(pristine: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    policies = []
    for step in (0, 1, 2):
        bits = torch.randint(0, 256, (8 * 24,), generator=generator, dtype=torch.uint8)  # any NaN among them
        policy = {"floating": bits.view(dtype).reshape(2, -1), "int64": bits.view(torch.int64), "uint8": bits}
        scalar = bits[: dtype.itemsize].view(dtype).reshape(())
        policies.append(
            StateTensors(policy | {"bool": bits > 7, "empty": torch.zeros(0, 3, dtype=dtype), "scalar": scalar})
        )
        if step == 0:
            stored = CastTensors(policies[0], torch.float32)
            save_weights(stored, torch.float32, pristine, tmp_path / "initial")
            continue
        kept.write(tmp_path / "kept", tmp_path / "initial", step, policies[-1])
        opened = kept.open_kept(tmp_path / "kept", tmp_path / "initial", step)
        assert first_difference(policies[-1], opened) is None


def test_a_tensor_of_several_blocks_is_restored(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "BLOCK", 7)
    policies = keep_three(tmp_path, pristine, torch.bfloat16)
    assert first_difference(policies[2], kept.open_kept(tmp_path, pristine, 60)) is None


def test_equal_policies_give_equal_bytes_and_the_one_before_may_be_given(pristine: Path, tmp_path: Path) -> None:
    policies = keep_three(tmp_path / "one", pristine, torch.bfloat16)
    before: Tensors = CastTensors(open_tensors(pristine), torch.bfloat16)
    for step, policy in zip((20, 40, 60), policies, strict=True):
        kept.write(tmp_path / "other", pristine, step, policy, before)
        before = policy
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "other")]
    assert contents[0] == contents[1]
    assert contents[0].keys() == {"manifest.json", *map(kept.delta_file, (20, 40, 60))}


def _truncate(folder: Path) -> None:
    path = folder / kept.delta_file(40)
    path.write_bytes(path.read_bytes()[:-9])


def _flip(folder: Path) -> None:
    path = folder / kept.delta_file(40)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _replace(folder: Path) -> None:
    """Put the delta of another step in its place, listed as what it is."""
    listed = read_json(folder / "manifest.json")
    (folder / kept.delta_file(40)).write_bytes((folder / kept.delta_file(20)).read_bytes())
    listed["files"][kept.delta_file(40)] = listed["files"][kept.delta_file(20)]
    write_json(folder / "manifest.json", listed)


def _write_words(folder: Path) -> None:
    """Put what is no delta in its place, listed."""
    path, listed = folder / kept.delta_file(40), read_json(folder / "manifest.json")
    path.write_text("these are words")
    listed["files"][path.name] = asdict(entry_of(path))
    write_json(folder / "manifest.json", listed)


@pytest.mark.parametrize(
    "damage", [_truncate, _flip, _replace, _write_words, lambda folder: (folder / kept.delta_file(40)).unlink()]
)
def test_a_damaged_delta_is_named_and_nothing_is_written(
    pristine: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    policies = keep_three(tmp_path / "kept", pristine, torch.float32)
    damage(tmp_path / "kept")
    with pytest.raises(UserError, match=r"step_00040\.arrow, the delta of step 40, "):
        kept.restore(tmp_path / "kept", pristine, 40, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    kept.restore(tmp_path / "kept", pristine, 20, tmp_path / "restored")  # which needs no other
    assert first_difference(policies[0], open_tensors(tmp_path / "restored")) is None


def test_what_cannot_be_restored_is_refused(pristine: Path, model_folder: Path, tmp_path: Path) -> None:
    keep_three(tmp_path / "kept", pristine, torch.float32)
    with pytest.raises(UserError, match="keeps no policy of step 50, but of 20, 40, 60"):
        kept.restore(tmp_path / "kept", pristine, 50, tmp_path / "restored")
    manifest = read_json(model_folder / "manifest.json")
    manifest["tensors"]["digest"] = "0" * 64
    write_json(model_folder / "manifest.json", manifest)
    with pytest.raises(UserError, match="began with another checkpoint"):
        kept.restore(tmp_path / "kept", model_folder, 20, tmp_path / "restored")
    listed = read_json(tmp_path / "kept" / "manifest.json")
    listed["policies"]["20"]["after"] = 40
    write_json(tmp_path / "kept" / "manifest.json", listed)
    with pytest.raises(UserError, match="step 20 refers to step 40"):
        kept.steps(tmp_path / "kept")


def test_a_killed_export_leaves_nothing_once_another_has_ended(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    initial, run = tmp_path / "initial", tmp_path / "run"
    convert.convert(model_folder, initial, Checkpoint(format="dcp"))
    keep_three(run / "kept", initial, torch.float32)
    with monkeypatch.context() as patch:
        patch.setattr(convert, "restore", _killed)
        child = os.fork()
        if child == 0:
            convert.export_kept(run / "kept", initial, 40, run / "chosen")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    convert.export_kept(run / "kept", initial, 40, run / "chosen")
    assert sorted(path.name for path in run.iterdir()) == ["chosen", "kept"]


def _killed(kept: Path, initial: Path, step: int, folder: Path) -> None:
    (folder / "half").mkdir(parents=True)
    os.kill(os.getpid(), signal.SIGKILL)
