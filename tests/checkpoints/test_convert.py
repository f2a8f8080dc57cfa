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

from dagrpo.checkpoints import facts
from dagrpo.checkpoints.convert import convert, export
from dagrpo.checkpoints.manifest import MANIFEST, Manifest, verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.params.checkpoint import Checkpoint

PARAMS = Checkpoint()


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
    """A file system of 120 KiB: the model, in pages of 4 KiB, fits once."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


def _steps(pristine: Path, folder: Path) -> dict[str, Callable[[Path], Manifest]]:
    convert(pristine, folder, PARAMS)
    return {
        "convert": lambda destination: convert(pristine, destination, PARAMS),
        "export": lambda destination: export(folder, destination, PARAMS),
    }


def test_convert_then_export_returns_the_model_byte_for_byte(pristine: Path, tmp_path: Path) -> None:
    convert(pristine, tmp_path / "initial", PARAMS)
    exported = export(tmp_path / "initial", tmp_path / "exported", PARAMS)
    assert (tmp_path / "exported" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()
    assert set(open_tensors(tmp_path / "initial").specs) == set(open_tensors(tmp_path / "exported").specs)
    # 260 x 16 embedding, tied; 2 layers of 2,368; 16 in the last norm
    assert facts.figures(tmp_path / "exported", exported) == {"parameters": 8912, "bytes": exported.bytes}
    assert ("parameters", "8,912") in facts.lines(tmp_path / "initial", verify(tmp_path / "initial"))


@pytest.mark.parametrize("step", ["convert", "export"])
def test_a_write_that_fails_half_way_leaves_nothing(step: str, pristine: Path, tmp_path: Path) -> None:
    run = _steps(pristine, tmp_path / "initial")[step]
    destination = tmp_path / "results" / "new"
    with _files_limited_to(20_000), pytest.raises(OSError, match=str(destination)) as caught:
        run(destination)
    assert caught.value.errno == errno.EFBIG
    assert list(destination.parent.iterdir()) == []


@pytest.mark.parametrize("step", ["convert", "export"])
def test_a_write_that_fails_half_way_leaves_the_old_checkpoint(step: str, pristine: Path, tmp_path: Path) -> None:
    run = _steps(pristine, tmp_path / "initial")[step]
    destination = tmp_path / "results" / "new"
    run(destination)
    before = verify(destination)
    with _files_limited_to(20_000), pytest.raises(OSError, match=str(destination)):
        run(destination)
    assert verify(destination) == before
    assert list(destination.parent.iterdir()) == [destination]


@pytest.mark.parametrize("step", ["convert", "export"])
def test_a_disk_that_fills_up_while_writing_is_named(
    step: str, pristine: Path, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _steps(pristine, tmp_path / "initial")[step]
    run(small_disk / "first")
    before = verify(small_disk / "first")
    # As if another process took the room after the check.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 40))
    with pytest.raises(OSError, match=r"No space left on device: '.*/disk/second'") as caught:
        run(small_disk / "second")
    assert caught.value.errno == errno.ENOSPC
    assert list(small_disk.iterdir()) == [small_disk / "first"]
    assert verify(small_disk / "first") == before


def test_a_full_disk_is_foreseen(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"bytes are needed, 1,000 are free") as caught:
        convert(pristine, tmp_path / "results" / "new", PARAMS)
    assert caught.value.errno == errno.ENOSPC
    assert list((tmp_path / "results").iterdir()) == []


def test_a_damaged_source_is_refused_before_anything_is_written(model_folder: Path, tmp_path: Path) -> None:
    (model_folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        convert(model_folder, tmp_path / "results" / "new", PARAMS)
    assert not (tmp_path / "results").exists()
