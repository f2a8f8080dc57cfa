"""Converting by parameter, and what is left when it fails half way."""

import errno
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dagrpo.checkpoints import facts
from dagrpo.checkpoints.convert import convert, export
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.manifest import MANIFEST, Manifest, verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.store import load_model, save_model
from dagrpo.params.checkpoint import Checkpoint

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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KiB, for one model and a file that takes most of the rest."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


def _params(format: str) -> Checkpoint:
    return Checkpoint.model_validate({"format": format})


def _step(name: str, pristine: Path, folder: Path) -> Callable[[Path], Manifest]:
    params = _params(name.split()[-1])
    if name.startswith("convert"):
        return lambda destination: convert(pristine, destination, params)
    convert(pristine, folder, params)
    return lambda destination: export(folder, destination, params)


@pytest.mark.parametrize("format", FORMATS.names())
def test_convert_then_export_returns_the_model_byte_for_byte(format: str, pristine: Path, tmp_path: Path) -> None:
    convert(pristine, tmp_path / "initial", _params(format))
    exported = export(tmp_path / "initial", tmp_path / "exported", _params(format))
    assert (tmp_path / "exported" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()
    assert set(open_tensors(tmp_path / "initial").specs) == set(open_tensors(tmp_path / "exported").specs)
    # 260 x 16 embedding, tied; 2 layers of 2,368; 16 in the last norm
    assert facts.figures(tmp_path / "exported", exported) == {"parameters": 8912, "bytes": exported.bytes}
    assert ("parameters", "8,912") in facts.lines(tmp_path / "initial", verify(tmp_path / "initial"))


@pytest.mark.parametrize("step", STEPS)
def test_a_write_that_fails_half_way_leaves_nothing(step: str, pristine: Path, tmp_path: Path) -> None:
    run = _step(step, pristine, tmp_path / "initial")
    destination = tmp_path / "results" / "new"
    with _files_limited_to(20_000), pytest.raises(OSError, match=str(destination)) as caught:
        run(destination)
    assert caught.value.errno == errno.EFBIG
    assert list(destination.parent.iterdir()) == []


@pytest.mark.parametrize("step", STEPS)
def test_a_write_that_fails_half_way_leaves_the_old_checkpoint(step: str, pristine: Path, tmp_path: Path) -> None:
    run = _step(step, pristine, tmp_path / "initial")
    destination = tmp_path / "results" / "new"
    run(destination)
    before = verify(destination)
    with _files_limited_to(20_000), pytest.raises(OSError, match=str(destination)):
        run(destination)
    assert verify(destination) == before
    assert list(destination.parent.iterdir()) == [destination]


@pytest.mark.parametrize("step", STEPS)
def test_a_disk_that_fills_up_while_writing_is_named(
    step: str, pristine: Path, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _step(step, pristine, tmp_path / "initial")
    run(small_disk / "first")
    before = verify(small_disk / "first")
    (small_disk / "other").write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 20_000))
    # As if another process took that room after the check.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 40))
    with pytest.raises(OSError, match=r"No space left on device: '.*/disk/second'") as caught:
        run(small_disk / "second")
    assert caught.value.errno == errno.ENOSPC
    assert sorted(small_disk.iterdir()) == [small_disk / "first", small_disk / "other"]
    assert verify(small_disk / "first") == before


def test_a_full_disk_is_foreseen(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"bytes are needed, 1,000 are free") as caught:
        convert(pristine, tmp_path / "results" / "new", _params("dcp"))
    assert caught.value.errno == errno.ENOSPC
    assert list((tmp_path / "results").iterdir()) == []


def test_a_damaged_source_is_refused_before_anything_is_written(model_folder: Path, tmp_path: Path) -> None:
    (model_folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        convert(model_folder, tmp_path / "results" / "new", _params("dcp"))
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("format", FORMATS.names())
def test_the_trainer_starts_from_any_format_and_writes_the_same(format: str, pristine: Path, tmp_path: Path) -> None:
    convert(pristine, tmp_path / "initial", _params(format))
    model, _ = load_model(tmp_path / "initial", torch.float32)
    before = model.state_dict()["model.norm.weight"].clone()
    with torch.no_grad():
        model.get_parameter("model.norm.weight").add_(1.0)
    saved = save_model(model, tmp_path / "initial", tmp_path / "policy")
    assert saved.format == format
    export(tmp_path / "policy", tmp_path / "exported", _params(format))
    assert torch.equal(open_tensors(tmp_path / "exported").read("model.norm.weight"), before + 1.0)
    verify(tmp_path / "initial")
