"""The folder that weights travel in: where it is made, and that nobody else's is touched."""

import shutil
import signal
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.errors import UserError
from dagrpo.engine import weight_files as module
from dagrpo.engine.weight_files import HEADROOM, KIND, WeightsFolder
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh
from dagrpo.utils.tempdirs import remove_abandoned

HOLDS = """
import sys, torch
from pathlib import Path
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.engine import weight_files
weight_files.MEMORY = Path(sys.argv[2])
with weight_files.WeightsFolder(Path(sys.argv[1]), None) as folder:
    print(folder.write(StateTensors({"w": torch.ones(2)})), flush=True)
    sys.stdin.read()
"""
WEIGHTS = StateTensors({"w": torch.ones(1000)})
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    make_fresh(tmp_path / "model", Fresh(hidden_size=16, num_hidden_layers=1), torch.float32)
    return tmp_path / "model"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(module, "MEMORY", tmp_path / "memory")
    return tmp_path / "memory"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    return tmp_path / "disk"


def let_be_free(free: dict[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that a file system has so many bytes left."""

    def usage(path: Path) -> Usage:
        return Usage(0, 0, next(room for parent, room in free.items() if path == parent or parent in path.parents))

    monkeypatch.setattr(shutil, "disk_usage", usage)


def test_the_folder_is_in_memory_has_what_a_model_needs_and_is_gone_afterwards(model: Path, memory: Path) -> None:
    with WeightsFolder(model, None) as folder:
        assert list(memory.iterdir()) == []
        path = folder.write(WEIGHTS)
        names = {file.name for file in path.iterdir()}
        assert path.parent == memory
        assert {"config.json", "tokenizer.json", "model.safetensors"} <= names
        assert "manifest.json" not in names
        assert folder.write(WEIGHTS) == path
    assert list(memory.iterdir()) == []


@pytest.mark.nightly
def test_only_the_folder_of_a_killed_process_is_removed_by_the_next(model: Path, memory: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(model), str(memory)]
    trainers = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(2)]
    folders = []
    for trainer in trainers:
        assert trainer.stdout is not None
        folders.append(Path(trainer.stdout.readline().strip()))
    trainers[0].send_signal(signal.SIGKILL)
    trainers[0].wait()
    assert all(folder.is_dir() for folder in folders)
    remove_abandoned(memory, KIND)
    assert [folder.is_dir() for folder in folders] == [False, True]
    trainers[1].communicate("")
    assert list(memory.iterdir()) == []


def test_what_lies_beside_the_folders_is_left_alone(model: Path, memory: Path) -> None:
    """The scratch folder of a live server, where both share a folder for temporary files, and one without a lock."""
    scratch, unlocked = memory / "dagrpo-sglang-abc", memory / f"dagrpo-weights-{socket.gethostname()}-abc"
    for folder in (scratch, unlocked):
        folder.mkdir()
        (folder / "settings.yaml").write_text("{}")
    with WeightsFolder(model, None) as weights:
        weights.write(WEIGHTS)
    remove_abandoned(memory, KIND)
    assert (scratch / "settings.yaml").is_file()
    assert (unlocked / "settings.yaml").is_file()


def test_weights_that_memory_has_no_room_for_go_through_the_disk_and_the_user_is_told(
    model: Path, memory: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(module, "say", said.append)
    let_be_free({memory: HEADROOM + 3999, disk: 10 * HEADROOM}, monkeypatch)
    with WeightsFolder(model, None) as folder:
        assert folder.write(WEIGHTS).parent == disk
    (sentence,) = said
    assert f"the engine's weights take {HEADROOM + 4000:,}: they go through {disk}" in sentence
    let_be_free({memory: HEADROOM + 4000}, monkeypatch)
    with WeightsFolder(model, None) as folder:
        assert folder.write(WEIGHTS).parent == memory
    let_be_free({memory: 5, disk: 7}, monkeypatch)
    sentence = f"{disk} has 7 bytes free, .* take {HEADROOM + 4000:,}: make room, or set runtime.engine.weights_folder"
    with WeightsFolder(model, None) as folder, pytest.raises(UserError, match=sentence):
        folder.write(WEIGHTS)
    assert list(memory.iterdir()) == list(disk.iterdir()) == []


def test_the_room_that_the_old_weights_take_is_used_for_the_new_ones(
    model: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WeightsFolder(model, None) as folder:
        path = folder.write(WEIGHTS)
        sizes: list[bool] = []

        def usage(where: Path) -> Usage:
            sizes.append((path / "model.safetensors").exists())
            return Usage(0, 0, 4000)

        monkeypatch.setattr(shutil, "disk_usage", usage)
        folder.write(WEIGHTS)
        assert sizes == [False]


def test_a_folder_that_was_chosen_is_used_and_can_be_read_by_a_server_of_another_user(
    model: Path, tmp_path: Path
) -> None:
    with WeightsFolder(model, tmp_path / "shared", 0o755) as folder:
        path = folder.write(WEIGHTS)
        assert path.parent == tmp_path / "shared"
        assert path.stat().st_mode & 0o777 == 0o755
    assert list((tmp_path / "shared").iterdir()) == []
    (tmp_path / "file").write_text("")
    sentence = rf"{tmp_path}/file/folder cannot be made \(Not a directory\): correct runtime\.engine\.weights_folder"
    with WeightsFolder(model, tmp_path / "file/folder") as folder, pytest.raises(UserError, match=sentence):
        folder.write(WEIGHTS)
