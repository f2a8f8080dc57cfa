"""A real full disk, in a namespace of its own: each writer's error names the file, and the sentence the disk and its room."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.namespaces import NAMESPACE, require_mounts

from dagrpo.utils.failures import full_disk_naming, sentence_of
from dagrpo.utils.files import write_json

WRITERS = """
import logging, sys
from pathlib import Path
import numpy, pyarrow, safetensors.numpy, torch
from dagrpo.pipeline import runner as frame
from dagrpo.utils.failures import sentence_of
from dagrpo.utils.files import atomic_file, atomic_folder, write_text
from dagrpo.utils.tables import write_parquet
from dagrpo.engine.errors import full_disk_among

disk = Path(sys.argv[1])
numbers = numpy.random.rand(500_000)

def with_safetensors():
    with atomic_folder(disk / "model") as folder:
        safetensors.numpy.save_file({"w": numbers}, folder / "w.safetensors")

def with_torch():
    with atomic_file(disk / "state.pt") as temporary:
        torch.save(torch.from_numpy(numbers), temporary)

for write in (
    lambda: write_parquet(disk / "table.parquet", pyarrow.table({"a": numbers})),
    lambda: write_text(disk / "text.json", "x" * 4_000_000),
    with_safetensors,
    with_torch,
):
    try:
        write()
    except Exception as error:
        print(sentence_of(error))
frame._log_to(disk / "stage.log", append=False)
(disk / "filler").write_bytes(b"")
try:
    (disk / "filler").write_bytes(b"x" * 4_000_000)
except OSError:
    pass
logging.getLogger("a").warning("y" * 100_000)
print(full_disk_among([disk / "train.server.log"]))
"""


def run_on_a_full_disk(tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    """On a tmpfs of 1 MB."""
    require_mounts()
    mount = f'mount -t tmpfs -o size=1m none {tmp_path} && exec "$@"'
    command = [*NAMESPACE, "sh", "-c", mount, "sh", sys.executable, "-c", WRITERS, str(tmp_path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_every_writer_s_full_disk_is_which_file_which_disk_and_how_much_is_free(tmp_path: Path) -> None:
    done = run_on_a_full_disk(tmp_path)
    *sentences, of_the_server = done.stdout.splitlines()
    files = ("table.parquet", "text.json", "model", "state.pt")
    assert len(sentences) == len(files), done.stderr
    for name, sentence in zip(files, sentences, strict=True):
        assert sentence.startswith(f"{tmp_path / name}: No space left on device: it takes more than the "), sentence
        assert sentence.endswith(f" bytes that are free on {tmp_path}: make room, then run again."), sentence
    assert (
        of_the_server
        == f"no room is left on {tmp_path}, which holds {tmp_path}/train.server.log: make room, then run again"
    )
    assert done.stderr == "", "logging prints no traceback of its own"


def test_a_limit_for_files_is_named_with_what_raises_it(tmp_path: Path) -> None:
    """RLIMIT_FSIZE, which every machine has; Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_json(tmp_path / "large.json", "x" * (1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    sentence = (
        f"{tmp_path / 'large.json'}: File too large: raise the limit for the size of files (ulimit -f), then run again."
    )
    assert sentence_of(caught.value) == sentence
    assert list(tmp_path.iterdir()) == []


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    for error in (RuntimeError("inline_container.cc: no such file"), ConnectionResetError(104, "reset"), KeyError("x")):
        with pytest.raises(type(error)) as caught, full_disk_naming(tmp_path):
            raise error
        assert caught.value is error
