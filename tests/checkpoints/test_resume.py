"""A conversion that was stopped goes on where it was, and ends with the bytes of one that never was."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.folder import CONFIG
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.manifest import verify, write_manifest
from dagrpo.checkpoints.resume import CHECKPOINT, JOURNAL, LOCK, work_folder
from dagrpo.checkpoints.source import Source, open_source, open_tensors
from dagrpo.checkpoints.tensors import Tensors, TensorSpec
from dagrpo.files import read_json, write_json
from dagrpo.listing import MANIFEST

LIMIT = 1 << 20


def _save_llama(folder: Path, layers: int) -> None:
    """Random weights, MLPs of 3 MB."""
    sizes: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 64, "vocab_size": 256}
    config = LlamaConfig(**sizes, num_hidden_layers=layers, intermediate_size=4096, max_position_embeddings=64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dozen files of 1 MB in every format. Never changed."""
    folder = tmp_path_factory.mktemp("resume") / "source"
    _save_llama(folder, layers=4)
    write_manifest(folder, "huggingface", open_tensors(folder))
    return folder


@pytest.fixture(scope="module")
def larger_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough files to meet a process in the midst of them. Never changed."""
    folder = tmp_path_factory.mktemp("resume") / "larger"
    _save_llama(folder, layers=16)
    return folder


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "results" / "made"


class InterruptedTensors:
    """Ctrl-C comes when the main thread, which writes and compares, has read so many tensors."""

    def __init__(self, tensors: Tensors, reads: int) -> None:
        self.specs: dict[str, TensorSpec] = dict(tensors.specs)
        self._tensors = tensors
        self._reads = reads

    def read(self, name: str) -> torch.Tensor:
        self._reads -= threading.current_thread() is threading.main_thread()
        if self._reads < 0:
            raise KeyboardInterrupt
        return self._tensors.read(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What a conversion left when it was stopped: its finished files, and what the file system says of each."""

    folder: Path
    files: dict[str, tuple[int, int]]  # inode and time of the last change

    def kept(self, folder: Path) -> set[str]:
        """Those that were not written again."""
        return {name for name, identity in self.files.items() if _identity(folder / name) == identity}


def _identity(path: Path) -> tuple[int, int]:
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else (0, 0)


def _stopped(destination: Path) -> Stopped:
    assert not destination.exists()
    folder = work_folder(destination) / CHECKPOINT
    return Stopped(folder=folder, files={name: _identity(folder / name) for name in _journalled(destination)})


def _interrupted(format: str, source: Source, destination: Path, reads: int = 20) -> Stopped:
    with pytest.raises(KeyboardInterrupt):
        write_as(format, replace(source, tensors=InterruptedTensors(source.tensors, reads)), destination, LIMIT)
    return _stopped(destination)


def _process(source: Path, destination: Path, format: str) -> "subprocess.Popen[str]":
    """The command as a person types it, as soon as it has finished a few files of weights."""
    arguments = ["convert", str(source), str(destination), "--to", format, "--max-shard-bytes", str(LIMIT)]
    process = subprocess.Popen([sys.executable, "-m", "dagrpo", *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(_journalled(destination)) < 5:
        assert process.poll() is None, "the conversion ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return process


def _journalled(destination: Path) -> set[str]:
    journal = work_folder(destination) / JOURNAL
    lines = journal.read_text().splitlines(keepends=True)[1:] if journal.exists() else []
    return {json.loads(line)["name"] for line in lines if line.endswith("\n")}


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _assert_as_if_never_stopped(format: str, source: Path, destination: Path) -> None:
    write_as(format, open_source(source), destination.parent / "fresh", LIMIT)
    assert _bytes(destination) == _bytes(destination.parent / "fresh")
    assert sorted(destination.parent.iterdir()) == [destination.parent / "fresh", destination]


@pytest.mark.parametrize("format", FORMATS.names())
def test_a_conversion_that_is_killed_goes_on_with_the_files_that_are_missing(
    format: str, larger_source: Path, destination: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    process = _process(larger_source, destination, format)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    stopped = _stopped(destination)
    manifest = write_as(format, open_source(larger_source), destination, LIMIT)
    assert len(stopped.files) >= 5
    assert stopped.kept(destination) == set(stopped.files)
    assert f"made: {len(stopped.files)} of {len(manifest.files)} files are there already." in capfd.readouterr().err
    _assert_as_if_never_stopped(format, larger_source, destination)


@pytest.mark.parametrize("reads", [0, 1, 20, 38, 39, 77])
@pytest.mark.parametrize("format", FORMATS.names())
def test_it_goes_on_from_wherever_it_was_stopped(format: str, reads: int, source: Path, destination: Path) -> None:
    """The model has 39 tensors, which are read once to be written and once to be compared."""
    stopped = _interrupted(format, open_source(source), destination, reads)
    write_as(format, open_source(source), destination, LIMIT)
    assert stopped.kept(destination) == set(stopped.files)
    _assert_as_if_never_stopped(format, source, destination)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _change(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-100] + bytes(100))


@pytest.mark.parametrize("damage", [_cut, _change, Path.unlink])
def test_a_finished_file_that_is_damaged_is_written_again(
    damage: Callable[[Path], None], source: Path, destination: Path
) -> None:
    stopped = _interrupted("dcp", open_source(source), destination)
    damaged = "shard-00001-model-00002-of-00017.safetensors"
    damage(stopped.folder / damaged)
    write_as("dcp", open_source(source), destination, LIMIT)
    assert set(stopped.files) - stopped.kept(destination) == {damaged}
    _assert_as_if_never_stopped("dcp", source, destination)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\n\n", b"0000\n{}"])
def test_a_damaged_journal_is_not_believed(content: bytes, source: Path, destination: Path) -> None:
    stopped = _interrupted("dcp", open_source(source), destination)
    (work_folder(destination) / JOURNAL).write_bytes(content)
    write_as("dcp", open_source(source), destination, LIMIT)
    assert not stopped.kept(destination)
    _assert_as_if_never_stopped("dcp", source, destination)


@pytest.mark.parametrize("last", [b'{"name', b"\xff", b'{"name":"a"}\n', b"\n"])
def test_a_line_of_the_journal_that_is_half_written_is_not_believed_but_those_before_it_are(
    last: bytes, source: Path, destination: Path
) -> None:
    stopped = _interrupted("dcp", open_source(source), destination)
    with (work_folder(destination) / JOURNAL).open("ab") as journal:
        journal.write(last)
    again = _interrupted("dcp", open_source(source), destination, 10)
    assert again.files.items() > stopped.files.items()
    write_as("dcp", open_source(source), destination, LIMIT)
    assert again.kept(destination) == set(again.files)
    _assert_as_if_never_stopped("dcp", source, destination)


def _touched(source: Path) -> Path:
    os.utime(source / "model.safetensors")
    return source


def _with_another_config(source: Path) -> Path:
    write_json(source / CONFIG, read_json(source / CONFIG) | {"pad_token_id": 0})
    write_manifest(source, "huggingface", open_tensors(source))
    return source


@pytest.mark.parametrize("change", [_touched, _with_another_config])
def test_what_was_made_of_another_source_is_not_kept(
    change: Callable[[Path], Path], source: Path, destination: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(source, tmp_path / "source"))
    stopped = _interrupted("dcp", open_source(copied), destination)
    write_as("dcp", open_source(change(copied)), destination, LIMIT)
    assert not stopped.kept(destination)
    _assert_as_if_never_stopped("dcp", copied, destination)


def test_what_was_made_in_another_format_or_with_other_shards_is_not_kept(source: Path, destination: Path) -> None:
    first = _interrupted("dcp", open_source(source), destination)
    second = _interrupted("huggingface", open_source(source), destination)
    assert not first.kept(second.folder)
    write_as("huggingface", open_source(source), destination, 2 * LIMIT)
    assert not second.kept(destination)
    write_as("huggingface", open_source(source), destination.parent / "fresh", 2 * LIMIT)
    assert _bytes(destination) == _bytes(destination.parent / "fresh")


def test_a_source_that_changed_without_a_trace_is_noticed_and_what_was_made_of_it_removed(
    source: Path, destination: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(source, tmp_path / "source"))
    (copied / MANIFEST).unlink()
    path = copied / "model.safetensors"
    times = path.stat()
    stopped = _interrupted("dcp", open_source(copied), destination)
    assert "shard-00001-model-00001-of-00017.safetensors" in stopped.files  # has lm_head.weight
    content = bytearray(path.read_bytes())
    state = open_source(copied).tensors.read("lm_head.weight").numpy().tobytes()
    content[content.index(state)] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ValueError, match=r"^lm_head\.weight as an earlier run wrote it is not that of .*run the same"):
        write_as("dcp", open_source(copied), destination, LIMIT)
    assert list(destination.parent.iterdir()) == []
    write_as("dcp", open_source(copied), destination, LIMIT)
    _assert_as_if_never_stopped("dcp", copied, destination)


def test_two_conversions_to_one_destination_do_not_meet(larger_source: Path, destination: Path) -> None:
    process = _process(larger_source, destination, "dcp")
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(ValueError, match=r"made is being written by another conversion: wait for it, or give another"):
        write_as("huggingface", open_source(larger_source), destination, LIMIT)
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    assert verify(destination).format == "dcp"
    _assert_as_if_never_stopped("dcp", larger_source, destination)


def test_a_mistake_leaves_nothing_of_an_earlier_run_either(source: Path, destination: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(source, tmp_path / "source"))
    _interrupted("dcp", open_source(copied), destination)
    (copied / "model.safetensors").write_bytes((copied / "model.safetensors").read_bytes()[:-4] + bytes(4))
    with pytest.raises(ValueError, match=r"model\.safetensors is changed"):
        write_as("dcp", open_source(copied), destination, LIMIT)
    assert list(destination.parent.iterdir()) == []


def test_room_is_needed_only_for_what_is_missing(
    source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_as("dcp", open_source(source), destination.parent / "fresh", LIMIT)
    stopped = _interrupted("dcp", open_source(source), destination)
    missing = whole.bytes - sum((stopped.folder / name).stat().st_size for name in stopped.files)
    assert missing < whole.bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=missing))
    write_as("dcp", open_source(source), destination, LIMIT)


def test_too_little_room_for_what_is_missing_is_refused(
    source: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupted("dcp", open_source(source), destination)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=LIMIT))
    with pytest.raises(OSError, match=r"bytes are needed, 1,048,576 are free: '.*/made'"):
        write_as("dcp", open_source(source), destination, LIMIT)


def test_a_checkpoint_that_was_being_replaced_is_put_back(source: Path, destination: Path) -> None:
    write_as("dcp", open_source(source), destination, LIMIT)
    before = _bytes(destination)
    destination.rename(destination.parent / ".made.replaced.old")  # killed between the two renames
    with pytest.raises(KeyboardInterrupt):
        tensors = InterruptedTensors(open_source(source).tensors, 0)
        write_as("huggingface", replace(open_source(source), tensors=tensors), destination, LIMIT)
    assert _bytes(destination) == before


def test_what_another_writer_left_is_removed(source: Path, destination: Path) -> None:
    (destination.parent / ".made.x1.part" / "folder").mkdir(parents=True)
    (destination.parent / ".made.up.x1.part").mkdir()  # belongs to `made.up`
    write_as("dcp", open_source(source), destination, LIMIT)
    assert sorted(path.name for path in destination.parent.iterdir()) == [".made.up.x1.part", "made"]


def test_the_lock_of_a_process_that_died_hinders_nobody(source: Path, destination: Path) -> None:
    work_folder(destination).mkdir(parents=True)
    (work_folder(destination) / LOCK).touch()
    write_as("dcp", open_source(source), destination, LIMIT)
    assert list(destination.parent.iterdir()) == [destination]
