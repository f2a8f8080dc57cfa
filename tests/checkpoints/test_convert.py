"""Converting by parameter, and what is left when it fails half way."""

import errno
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dagrpo.checkpoints.compare import figures_of, summary_lines
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert, export
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.manifest import Manifest, verify
from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.checkpoints.store import load_model
from dagrpo.utils.distributed import single_process
from dagrpo.utils.manifest import MANIFEST

STEPS = [
    step for name in FORMATS.names() if name != "huggingface" for step in (f"convert to {name}", f"export from {name}")
]


@contextmanager
def _files_limited_to(limit: int) -> Iterator[None]:
    """The system refuses to let any file grow beyond the limit, in the middle of a write."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def _params(format: str) -> Checkpoint:
    return Checkpoint.model_validate({"format": format})


def _step(name: str, pristine: Path, folder: Path) -> Callable[[Path], Manifest]:
    params = _params(name.split()[-1])
    if name.startswith("convert"):
        return lambda destination: convert(pristine, destination, params)
    convert(pristine, folder, params)
    return lambda destination: export(folder, destination, params)


@pytest.mark.parametrize("step", STEPS)
def test_a_write_that_fails_half_way_leaves_what_was_there_before(step: str, pristine: Path, tmp_path: Path) -> None:
    run = _step(step, pristine, tmp_path / "initial")
    destination = tmp_path / "results" / "new"
    with _files_limited_to(20_000), pytest.raises(OSError, match=str(destination)) as caught:
        run(destination)
    assert caught.value.errno == errno.EFBIG
    assert list(destination.parent.iterdir()) == []
    before = run(destination)
    with _files_limited_to(20_000), pytest.raises(OSError, match=str(destination)):
        run(destination)
    assert verify(destination) == before
    assert list(destination.parent.iterdir()) == [destination]


def test_a_full_disk_is_foreseen(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"bytes are needed, 1,000 are free") as caught:
        convert(pristine, tmp_path / "results" / "new", _params("dcp"))
    assert caught.value.errno == errno.ENOSPC
    assert list((tmp_path / "results").iterdir()) == []


def test_a_damaged_source_is_refused_before_anything_is_written(model_folder: Path, tmp_path: Path) -> None:
    content = (model_folder / "model.safetensors").read_bytes()
    (model_folder / "model.safetensors").write_bytes(content[:-4] + bytes(4))
    with pytest.raises(ValueError, match=r"model\.safetensors is changed"):  # it is not linked
        convert(model_folder, tmp_path / "results" / "new", Checkpoint(format="huggingface"))
    (model_folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        convert(model_folder, tmp_path / "results" / "new", _params("dcp"))
    assert not (tmp_path / "results").exists()


def test_where_both_formats_are_one_convert_and_export_share_the_files(pristine: Path, tmp_path: Path) -> None:
    params = Checkpoint(format="huggingface")
    (pristine / "provenance.json").write_text("{}")
    try:
        convert(pristine, tmp_path / "initial", params)
    finally:
        (pristine / "provenance.json").unlink()
    manifest = export(tmp_path / "initial", tmp_path / "exported", params)
    for folder in (tmp_path / "initial", tmp_path / "exported"):
        assert {path.name for path in folder.iterdir()} == {*manifest.files, MANIFEST}
        for name in manifest.files:
            assert (folder / name).read_bytes() == (pristine / name).read_bytes()
        assert (folder / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()
        assert (folder / MANIFEST).stat().st_ino != (pristine / MANIFEST).stat().st_ino


def test_the_exported_model_has_the_same_bytes_in_every_format(pristine: Path, tmp_path: Path) -> None:
    """A policy that was trained, through each format."""
    manifests = []
    for format in FORMATS.names():
        folder = tmp_path / format
        convert(pristine, folder / "initial", _params(format))
        model, _ = load_model(folder / "initial", torch.float32)
        with torch.no_grad():
            model.get_parameter("model.norm.weight").add_(1.0)
        save_sharded(model, folder / "initial", folder / "policy", single_process())
        exported = export(folder / "policy", folder / "exported", _params(format))
        manifests.append((folder / "exported" / MANIFEST).read_bytes())
        # 260 x 16 embedding, tied; 2 layers of 2,368; 16 in the last norm
        assert figures_of(folder / "exported", exported) == {"parameters": 8912, "bytes": exported.bytes}
        assert ("parameters", "8,912") in summary_lines(folder / "initial", verify(folder / "initial"))
    assert len(set(manifests)) == 1
    assert manifests[0] != (pristine / MANIFEST).read_bytes()
    verify(pristine)  # though its files are linked by some
