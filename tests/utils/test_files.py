import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.namespaces import NAMESPACE, require_mounts

from dagrpo.utils.files import (
    FEWEST_LINKED,
    atomic_file,
    atomic_folder,
    copy,
    read_json,
    share,
    unshare,
    write_json,
    write_text,
)
from dagrpo.utils.tables import read_parquet


def test_a_file_that_fails_half_way_leaves_the_old_content_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with pytest.raises(RuntimeError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_is_replaced_as_a_whole_and_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".model.killed.part").mkdir()
    for name in ("first", "second"):
        with atomic_folder(tmp_path / "model") as folder:
            (folder / name).write_text(name)
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["second"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("name", "read", "content", "words"),
    [
        ("card.json", read_json, None, "is missing"),
        ("card.json", read_json, b"{", "is not valid JSON"),
        ("card.json", read_json, b"\xff", "is not valid JSON"),
        ("train.parquet", read_parquet, None, "is missing"),
        ("train.parquet", read_parquet, b"", "is not a readable"),
        ("train.parquet", read_parquet, b"PAR1xx", "is not a readable"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_remedy(
    tmp_path: Path, name: str, read: Callable[[Path], object], content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} {words}.*run the stage"):
        read(tmp_path / name)


FULL_DISK = """
import errno, sys
from pathlib import Path
from dagrpo.utils.files import atomic_folder, require_space
disk = Path(sys.argv[1])
(disk / "model").mkdir()
(disk / "model/weights").write_text("old")
try:
    with atomic_folder(disk / "model") as folder:
        (folder / "weights").write_bytes(b"0" * 4_000_000)
except OSError as error:
    assert error.errno == errno.ENOSPC
    assert (disk / "model/weights").read_text() == "old"
    assert [p.name for p in disk.iterdir()] == ["model"]
    try:
        require_space(disk, 4_000_000)
    except OSError as refused:
        print("refused:", refused.errno == errno.ENOSPC)
"""


def test_a_full_disk_leaves_the_old_folder_whole_and_is_refused_before_writing(tmp_path: Path) -> None:
    """A real full disk: a tmpfs of 1 MB in a namespace of its own."""
    require_mounts()
    mount = f"mount -t tmpfs -o size=1m none {tmp_path} && exec {sys.executable} -c '{FULL_DISK}' {tmp_path}"
    done = subprocess.run([*NAMESPACE, "sh", "-c", mount], capture_output=True, text=True, check=False)
    assert done.stdout == "refused: True\n", done.stderr


def _folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "weights").write_text(content)
    return path


@pytest.mark.parametrize("is_linked", [True, False])
def test_a_read_only_file_is_replaced_by_a_writable_copy_and_its_other_name_stays(
    tmp_path: Path, is_linked: bool
) -> None:
    path, other = tmp_path / "card.json", tmp_path / "cache"
    path.write_text("{}")
    path.chmod(0o444)
    if is_linked:
        os.link(path, other)
    unshare(path)
    assert (path.read_text(), path.stat().st_nlink, stat.S_IMODE(path.stat().st_mode)) == ("{}", 1, 0o644)
    assert not is_linked or stat.S_IMODE(other.stat().st_mode) == 0o444


@pytest.mark.parametrize("failing", [1, 2])
def test_a_folder_whose_replacement_fails_is_in_place_as_before(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two renames replace a folder: the old one out of the way, the new one in its place."""
    path = _folder(tmp_path / "model", "old")
    rename, calls = Path.rename, iter(range(1, 10))

    def rename_or_fail(self: Path, target: Path) -> Path:
        if next(calls) == failing:
            raise OSError(errno.EIO, "Input/output error", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_or_fail)
    with pytest.raises(OSError, match="Input/output error"), atomic_folder(path) as folder:
        (folder / "weights").write_text("new")
    assert (path / "weights").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


KILLED = """
import os, signal, sys
from pathlib import Path
from dagrpo.utils.files import atomic_folder
rename, path = Path.rename, Path(sys.argv[1])
def rename_and_die(self, target):
    rename(self, target)
    os.kill(os.getpid(), signal.SIGKILL)
with atomic_folder(path) as folder:
    (folder / "weights").write_text("new")
    Path.rename = rename_and_die
"""


def test_a_folder_that_a_kill_left_out_of_its_place_is_put_back_by_the_next_writer(tmp_path: Path) -> None:
    path = _folder(tmp_path / "model", "old")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not path.exists()
    with pytest.raises(RuntimeError), atomic_folder(path):
        raise RuntimeError
    assert (path / "weights").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


READ_ONLY = """
import os, sys
from pathlib import Path
from dagrpo.utils.files import atomic_folder
modes = []
sys.addaudithook(lambda event, arguments: modes.append(arguments) if event == "open" else None)
with atomic_folder(Path(sys.argv[1]) / "model") as folder:
    os.link(Path(sys.argv[1]) / "cached", folder / "weights")
opened = [flags & os.O_ACCMODE for path, _, flags in modes if str(path).endswith("weights")]
print(opened == [os.O_RDONLY], (Path(sys.argv[1]) / "model/weights").stat().st_nlink)
"""


def test_a_folder_may_hold_hard_links_to_files_that_nobody_may_write(tmp_path: Path) -> None:
    """As DVC's cache protects its files. The superuser may open them for writing all the same, so the flags are read."""
    (tmp_path / "cached").write_text("protected")
    (tmp_path / "cached").chmod(0o444)
    done = subprocess.run([sys.executable, "-c", READ_ONLY, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "True 2\n", done.stderr


@pytest.fixture
def without_reflinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on ext4, whichever file system the tests run on."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "ioctl", refuse)


def _large(path: Path) -> Path:
    path.write_bytes(b"w" * FEWEST_LINKED)
    return path


@pytest.mark.usefixtures("without_reflinks")
def test_a_large_file_is_shared_as_a_link_that_nobody_may_write_to_and_a_small_one_as_a_copy(tmp_path: Path) -> None:
    (tmp_path / "small").write_text("content")
    share(tmp_path / "small", tmp_path / "other")
    (tmp_path / "other").write_text("mine")
    assert (tmp_path / "small").read_text() == "content"
    source = _large(tmp_path / "a")
    source.chmod(0o664)
    share(source, tmp_path / "b")
    assert (tmp_path / "b").stat().st_ino == source.stat().st_ino
    assert stat.S_IMODE(source.stat().st_mode) == 0o444
    write_text(tmp_path / "b", "replaced")
    assert source.read_bytes() == b"w" * FEWEST_LINKED
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o644


@pytest.mark.parametrize("call", ["link", "chmod"])
@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
@pytest.mark.usefixtures("without_reflinks")
def test_where_a_read_only_link_cannot_be_made_the_file_is_copied(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    share(_large(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"w" * FEWEST_LINKED
    assert (tmp_path / "a").stat().st_nlink == 1


@pytest.mark.parametrize("way", [copy, share])
def test_a_reflink_has_its_own_content(way: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """The call is the kernel's: this one does what it does on btrfs and xfs."""

    def clone(writing: int, code: int, reading: int) -> None:
        assert code == 0x40049409
        os.write(writing, os.read(reading, FEWEST_LINKED))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fcntl, "ioctl", clone)
        way(_large(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert (tmp_path / "b").stat().st_ino != (tmp_path / "a").stat().st_ino


def test_a_folder_that_cannot_be_written_to_is_told_with_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**place: object) -> tuple[int, str]:
        raise PermissionError(errno.EACCES, "Permission denied", f"{place['dir']}/.params.yaml.x1y2.part")

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    with pytest.raises(PermissionError) as told:
        write_text(tmp_path / "params.yaml", "")
    assert told.value.filename == str(tmp_path / "params.yaml")


def test_a_file_in_whose_place_a_folder_stands_is_named_and_not_its_temporary_copy(tmp_path: Path) -> None:
    (tmp_path / "job.json").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_json(tmp_path / "job.json", {})
    assert caught.value.filename == str(tmp_path / "job.json")
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]
