"""Folders of processes that are gone are removed; what another user has put beside them is not touched."""

import os
import socket
from pathlib import Path

import pytest

from dagrpo.utils.tempdirs import remove_abandoned, temporary_folder


def _plant(parent: Path) -> Path:
    """A folder and a lock whose process is gone."""
    folder = parent / f"dagrpo-sglang-{socket.gethostname()}-planted"
    folder.mkdir()
    folder.with_name(f"{folder.name}.lock").touch()
    return folder


def test_what_a_process_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    _plant(tmp_path)
    with temporary_folder(tmp_path, "sglang") as folder:
        assert set(tmp_path.iterdir()) == {folder, folder.with_name(f"{folder.name}.lock")}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_user_is_neither_read_nor_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = _plant(tmp_path)
    os.mkfifo(planted / "shared_memory")  # who reads it waits for ever
    monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
    remove_abandoned(tmp_path, "sglang")
    assert planted.is_dir()


def test_a_lock_of_ours_does_not_vouch_for_a_link(tmp_path: Path) -> None:
    planted, elsewhere = _plant(tmp_path), tmp_path / "elsewhere"
    planted.rmdir()
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    planted.symlink_to(elsewhere)
    remove_abandoned(tmp_path, "sglang")
    assert (elsewhere / "mine").exists()


def test_a_folder_whose_removal_is_interrupted_is_removed_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with (
        monkeypatch.context() as patch,
        pytest.raises(KeyboardInterrupt),
        temporary_folder(tmp_path, "sglang") as folder,
    ):
        patch.setattr("shutil.rmtree", interrupted)
        (folder / "settings.yaml").touch()
    assert folder.is_dir()
    remove_abandoned(tmp_path, "sglang")
    assert list(tmp_path.iterdir()) == []
