"""A conversion that was killed leaves nothing that a second one trips over."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.everyday import everyday
from transformers import LlamaConfig, LlamaForCausalLM

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import open_checkpoint

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
