"""Converting by parameter, and what is left when it fails half way or is killed."""

import errno
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.everyday import everyday
from transformers import LlamaConfig, LlamaForCausalLM

from dagrpo.checkpoints.compare import figures_of, summary_lines
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert, export, write_as
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.manifest import Manifest, verify
from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.checkpoints.source import open_checkpoint
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


LIMIT = 1 << 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in enough files to meet a process in the midst of them. Never changed."""
    folder = tmp_path_factory.mktemp("killed") / "source"
    sizes: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 64, "vocab_size": 256}
    config = LlamaConfig(**sizes, num_hidden_layers=16, intermediate_size=4096, max_position_embeddings=64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "results" / "made"


def _in_the_midst(source: Path, destination: Path, format: str) -> "subprocess.Popen[str]":
    """Start the command as a person types it, and return once it has written a few files of weights."""
    arguments = ["convert", str(source), str(destination), "--to", format, "--max-shard-bytes", str(LIMIT)]
    process = subprocess.Popen([sys.executable, "-m", "dagrpo", *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while sum(path.stat().st_size >= LIMIT // 2 for path in destination.parent.glob(".made.*.part/**/*")) < 5:
        assert process.poll() is None, "the conversion ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return process


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.nightly
@pytest.mark.parametrize("format", everyday(["dcp"], FORMATS.names()))
def test_a_killed_conversion_leaves_no_checkpoint_and_the_next_one_removes_what_it_wrote(
    format: str, source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_as(format, open_checkpoint(source), destination.parent / "whole", LIMIT)
    process = _in_the_midst(source, destination, format)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not destination.exists()
    [left] = destination.parent.glob(".made.*.part")
    # What the killed one wrote is removed before the room for the next one is asked for.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0 if left.exists() else whole.bytes))
    write_as(format, open_checkpoint(source), destination, LIMIT)
    assert _bytes(destination) == _bytes(destination.parent / "whole")
    assert sorted(destination.parent.iterdir()) == [destination, destination.parent / "whole"]


@pytest.mark.nightly
def test_two_conversions_to_one_destination_do_not_meet(source: Path, destination: Path) -> None:
    process = _in_the_midst(source, destination, "dcp")
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(ValueError, match=r"made is being written by another conversion: wait for it, or give another"):
        write_as("huggingface", open_checkpoint(source), destination, LIMIT)
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    assert verify(destination).format == "dcp"
    assert list(destination.parent.iterdir()) == [destination]


def test_a_checkpoint_that_was_being_replaced_is_put_back(
    source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_as("dcp", open_checkpoint(source), destination, LIMIT)
    before = _bytes(destination)
    destination.rename(destination.parent / ".made.replaced.old")  # killed between the two renames
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(OSError, match="bytes are needed, 0 are free"):
        write_as("huggingface", open_checkpoint(source), destination, LIMIT)
    assert _bytes(destination) == before
