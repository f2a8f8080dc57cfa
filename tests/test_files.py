import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dagrpo.files import atomic_file, atomic_folder, read_json, read_parquet, write_json, write_parquet


def test_a_file_that_fails_half_way_leaves_the_old_content_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with pytest.raises(RuntimeError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_that_fails_half_way_leaves_the_old_folder_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with atomic_folder(path) as folder:
        (folder / "weights").write_text("old")
    with pytest.raises(RuntimeError), atomic_folder(path) as folder:
        (folder / "weights").write_text("half")
        raise RuntimeError
    assert (path / "weights").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_folder_is_replaced_as_a_whole_and_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".model.killed.part").mkdir()
    for name in ("first", "second"):
        with atomic_folder(tmp_path / "model") as folder:
            (folder / name).write_text(name)
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["second"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_what_is_being_written_beside_under_a_longer_name_is_left_alone(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "model.large") as other:
        with atomic_folder(tmp_path / "model"):
            pass
        assert other.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "model.large"]


def test_the_same_rows_give_the_same_parquet_bytes(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1, 2]), "b": pa.array(["x", None])})
    for name in ("one", "two"):
        write_parquet(tmp_path / name, table)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert read_parquet(tmp_path / "one").equals(table)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "is missing"), (b"{", "is not valid JSON"), (b"\xff", "is not valid JSON")]
)
def test_json_that_cannot_be_read_is_named_with_the_remedy(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "card.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"card.json {words}.*run the stage"):
        read_json(path)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "is missing"), (b"", "is not a readable"), (b"PAR1xx", "is not a readable")]
)
def test_parquet_that_cannot_be_read_is_named_with_the_remedy(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "train.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"train.parquet {words}.*run the stage"):
        read_parquet(path)


FULL_DISK = """
import errno, sys
from pathlib import Path
from dagrpo.files import atomic_folder, require_space
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
    namespace = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mount namespaces")
    mount = f"mount -t tmpfs -o size=1m none {tmp_path} && exec {sys.executable} -c '{FULL_DISK}' {tmp_path}"
    done = subprocess.run([*namespace, "sh", "-c", mount], capture_output=True, text=True, check=False)
    assert done.stdout == "refused: True\n", done.stderr
