"""manifest.json names what is wrong with a folder."""

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile import NOT_IN_THE_FOLDER, anything, refusal

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.manifest import read_manifest, tensor_digest, verify, write_manifest
from dagrpo.checkpoints.source import open_checkpoint, open_tensors
from dagrpo.checkpoints.tensors import StateTensors, first_difference
from dagrpo.core.errors import UserError
from dagrpo.utils import manifest as utils_manifest
from dagrpo.utils.files import sha256_of
from dagrpo.utils.manifest import MANIFEST


def test_the_digest_is_one_sha256_over_name_type_shape_and_bytes_in_name_order() -> None:
    tensors = StateTensors(
        {"b": torch.tensor([[1.0], [2.0]]), "a": torch.tensor([3], dtype=torch.int32)},
    )
    expected = hashlib.sha256(
        b'["a","int32",[1]]\n' + struct.pack("<i", 3) + b'["b","float32",[2,1]]\n' + struct.pack("<2f", 1.0, 2.0)
    )
    assert tensor_digest(tensors) == expected.hexdigest()


def test_the_digest_is_of_values_and_tells_types_and_shapes_apart_that_have_the_same_bytes() -> None:
    square = torch.arange(6.0).reshape(2, 3)
    assert tensor_digest(StateTensors({"w": square.T})) == tensor_digest(StateTensors({"w": square.T.contiguous()}))
    states = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32)]
    assert len({tensor_digest(StateTensors({"w": tensor})) for tensor in states}) == 3


def test_a_manifest_lists_every_file_but_itself_and_provenance(model_folder: Path) -> None:
    (model_folder / "provenance.json").write_text("{}")
    manifest = write_manifest(model_folder, "huggingface", HuggingFaceTensors(model_folder))
    names = {path.name for path in model_folder.iterdir()} - {"manifest.json", "provenance.json"}
    assert set(manifest.files) == names
    assert manifest.bytes == sum((model_folder / name).stat().st_size for name in names)
    (model_folder / ".snakemake_timestamp").touch()
    assert verify(model_folder) == manifest


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", Path.unlink, r"config\.json is missing, but .*manifest\.json lists it: restore it"),
        ("model.safetensors", lambda path: os.truncate(path, 100), r"model\.safetensors is truncated \([\d,]+ bytes"),
        ("model.safetensors", _flip, r"model\.safetensors is changed \(its sha256"),
        ("extra.safetensors", Path.touch, r"extra\.safetensors is not in .*: remove it"),
        (MANIFEST, Path.unlink, r"manifest\.json is missing: run the stage that makes it"),
    ],
)
def test_a_file_that_is_not_as_listed_is_named(
    name: str, change: Callable[[Path], object], message: str, model_folder: Path
) -> None:
    change(model_folder / name)
    with pytest.raises(UserError, match=message):
        verify(model_folder)


def test_a_manifest_of_a_format_that_is_not_installed_says_what_to_install(model_folder: Path) -> None:
    path = model_folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": "zip"}))
    with pytest.raises(ValueError, match=r"the format of \S+/model is 'zip', .*pip install \./packages/dagrpo_zip"):
        open_tensors(model_folder)
    with pytest.raises(ValueError, match="is 'zip', a checkpoint format that is not installed"):
        open_checkpoint(model_folder)


def _list_too(folder: Path, name: str) -> Path:
    content = json.loads((folder / MANIFEST).read_text())
    content["files"][name] = {"sha256": "0" * 64, "bytes": 1}
    (folder / MANIFEST).write_text(json.dumps(content))
    return folder / MANIFEST


TEXTS = [name for name in NOT_IN_THE_FOLDER if isinstance(name, str)]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", *TEXTS], ids=lambda name: repr(name)[:20])
def test_a_manifest_cannot_name_what_is_no_file_inside_its_folder(model_folder: Path, name: str) -> None:
    _list_too(model_folder, name)
    with pytest.raises(UserError, match="which is not a file inside its folder: do not use") as refusal:
        verify(model_folder)
    assert len(str(refusal.value).replace(str(model_folder), "")) < 300
    assert str(refusal.value).isprintable()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=20) | st.text("a./\0\\ ", max_size=8))
def test_any_name_in_a_manifest_is_inside_its_folder_or_refused(model_folder: Path, name: str) -> None:
    content = (model_folder / MANIFEST).read_text()
    path = _list_too(model_folder, name)
    said = refusal(lambda: read_manifest(path))
    path.write_text(content)
    inside = os.path.normpath(model_folder / name)
    assert len(said) < 500
    assert said or (inside == str(model_folder / name) and inside.startswith(f"{model_folder}/"))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["", "format", "files", "tensors", "tensors.dtypes", "files.config.json"]), anything)
def test_a_manifest_with_anything_in_it_is_read_or_refused_in_a_sentence(
    model_folder: Path, field: str, value: object
) -> None:
    path = model_folder / MANIFEST
    before = path.read_text()
    content = json.loads(before)
    *parents, last = field.split(".", 1) if field else [None]
    place = content
    for parent in parents:
        place = place[parent]
    if last is None:
        content = value
    else:
        place[last] = value
    path.write_text(json.dumps(content))
    said = refusal(lambda: verify(model_folder))
    path.write_text(before)
    assert len(said.replace(str(model_folder), "")) < 500


def test_the_first_tensor_that_is_not_the_same_in_type_shape_or_bytes_is_named() -> None:
    state = {"a": torch.tensor([1.0, torch.nan]), "b": torch.arange(5, dtype=torch.uint8), "c": torch.ones(2, 4)}
    ours = StateTensors(state)
    assert first_difference(ours, StateTensors({name: tensor.clone() for name, tensor in state.items()})) is None
    others = {
        "a": [torch.tensor([1.0, 2.0]), torch.tensor([-1.0, torch.nan])],
        "b": [torch.arange(5, dtype=torch.int8), torch.arange(1, 6, dtype=torch.uint8)],
        "c": [torch.ones(4, 2), torch.zeros(2, 4)],
    }
    for name, changed in others.items():
        assert all(first_difference(ours, StateTensors(state | {name: tensor})) == name for tensor in changed)
    assert first_difference(ours, StateTensors({"a": state["a"], "c": state["c"]})) == "b"
    # The same bytes at places that are and are not aligned.
    shifted = torch.cat([torch.zeros(1), torch.ones(8)])[1:].reshape(2, 4)
    assert first_difference(ours, StateTensors(state | {"c": shifted})) is None


def test_a_large_file_is_read_once_on_a_machine_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".state").mkdir()
    weights, read = Path("weights"), list[Path]()

    def observed(path: Path) -> str:
        read.append(path)
        return sha256_of(path)

    monkeypatch.setattr(utils_manifest, "sha256_of", observed)
    weights.write_bytes(bytes(utils_manifest.FEWEST_NOTED))
    entry = utils_manifest.entry_of(weights, noted=True)
    Path("linked").hardlink_to(weights)
    assert utils_manifest.fault_since_read(weights, entry) is None
    assert utils_manifest.fault_since_read(Path("linked"), entry) is None
    assert read == [weights] * 2  # a link changes the file's ctime
    assert utils_manifest.fault_of(weights, entry) is None
    assert read == [weights] * 3
    weights.write_bytes(bytes(utils_manifest.FEWEST_NOTED - 1) + b"1")
    assert "is changed" in str(utils_manifest.fault_since_read(weights, entry))
    assert read == [weights] * 5  # no fault is found by a note alone


def test_a_file_that_is_replaced_while_it_is_read_is_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".state").mkdir()
    weights, new, linked = Path("weights"), Path("new"), Path("linked")
    weights.write_bytes(bytes(utils_manifest.FEWEST_NOTED))
    new.write_bytes(bytes(utils_manifest.FEWEST_NOTED - 1) + b"1")
    linked.hardlink_to(weights)

    def replaced(path: Path) -> str:
        if new.exists():
            new.replace(path)
        return sha256_of(path)

    monkeypatch.setattr(utils_manifest, "sha256_of", replaced)
    entry = utils_manifest.entry_of(weights, noted=True)
    assert "is changed" in str(utils_manifest.fault_since_read(linked, entry))
