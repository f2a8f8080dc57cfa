"""The folder in memory that the engine loads weights from."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.models.fresh import make_fresh
from dagrpo.params.model import Fresh
from dagrpo.rollout.engine import weights as sync
from dagrpo.rollout.engine.weights import engine_folder, remove_abandoned

HOLDS = """
import sys
from pathlib import Path
from dagrpo.rollout.engine import weights as sync
sync._memory_folder = lambda: Path(sys.argv[2])
with sync.engine_folder(Path(sys.argv[1])) as folder:
    print(folder.path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    make_fresh(tmp_path / "model", Fresh(hidden_size=16, num_hidden_layers=1), torch.float32)
    return tmp_path / "model"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(sync, "_memory_folder", lambda: tmp_path / "memory")
    return tmp_path / "memory"


def test_the_folder_has_what_a_model_needs_and_is_gone_afterwards(model: Path, memory: Path) -> None:
    with engine_folder(model) as folder:
        folder.write(StateTensors({"w": torch.ones(2)}))
        names = {path.name for path in folder.path.iterdir()}
        assert {"config.json", "tokenizer.json", "model.safetensors"} <= names
        assert "manifest.json" not in names
    assert list(memory.iterdir()) == []


def test_only_the_folder_of_a_killed_trainer_is_removed_by_the_next(model: Path, memory: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(model), str(memory)]
    trainers = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(2)]
    folders = []
    for trainer in trainers:
        assert trainer.stdout is not None
        folders.append(Path(trainer.stdout.readline().strip()))
    trainers[0].send_signal(signal.SIGKILL)
    trainers[0].wait()
    assert all(folder.is_dir() for folder in folders)
    remove_abandoned(memory)
    assert [folder.is_dir() for folder in folders] == [False, True]
    trainers[1].communicate("")
    assert list(memory.iterdir()) == []
