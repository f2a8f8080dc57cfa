"""Every job has GPUs of its own. The machine's are played by an nvidia-smi on PATH and by CUDA_VISIBLE_DEVICES."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagrpo.core.errors import UserError
from dagrpo.engine.servers import gpus_of
from dagrpo.engine.sglang import Config
from dagrpo.utils import devices
from dagrpo.utils.devices import VISIBLE, own_devices, visible_devices

HOLDER = """
import sys
from pathlib import Path
from dagrpo.utils import devices as module
from dagrpo.utils.devices import own_devices
module.LOCKS = Path(sys.argv[2])
with own_devices(int(sys.argv[1])) as own:
    print(*own, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "LOCKS", tmp_path / "locks")
    monkeypatch.delenv(VISIBLE, raising=False)


def _machine_with(count: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nseq 0 {count - 1}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_jobs_at_the_same_time_get_different_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _machine_with(3, tmp_path, monkeypatch)
    held = []
    jobs = []
    for count in (1, 2):
        job = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(count), str(tmp_path / "locks")], stdin=-1, stdout=-1, text=True
        )
        assert job.stdout is not None
        held += job.stdout.readline().split()
        jobs.append(job)
    assert sorted(held) == ["0", "1", "2"]
    jobs[0].kill()  # however a job ends, its device is free again
    jobs[0].wait()
    with own_devices(1) as own:
        assert own == ["0"]
        assert os.environ[VISIBLE] == "0"
    assert VISIBLE not in os.environ
    jobs[1].communicate("\n")


def test_devices_that_a_scheduler_gave_are_the_only_ones_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0,0,1,-1,2")
    assert visible_devices() == ["0", "1"], "what follows -1 is none"
    monkeypatch.setenv(VISIBLE, "GPU-5f, GPU-77")
    with own_devices(1) as own:
        assert own == ["GPU-5f"]
    assert os.environ[VISIBLE] == "GPU-5f, GPU-77"
    refused = r"4 GPUs are needed and this machine has 2: lower runtime\.training\.processes"
    with pytest.raises(UserError, match=refused), own_devices(4):
        pass


@pytest.mark.parametrize("program", [None, "exit 9"], ids=["no nvidia-smi", "one that fails"])
def test_without_an_nvidia_smi_that_lists_them_the_driver_counts_the_devices(
    program: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _driver_of(8, tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    if program is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert visible_devices() == [*"01234567"]
    assert gpus_of(Config(replicas=4, tensor_parallel=2), visible_devices()) == ["0,1", "2,3", "4,5", "6,7"]
    monkeypatch.setenv(VISIBLE, "3,5")
    assert visible_devices() == ["3", "5"]


@pytest.mark.parametrize("result", [100, 999])
def test_a_driver_that_finds_no_device_counts_none(
    result: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _driver_of(0, tmp_path, monkeypatch, result)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_devices() == []


def _driver_of(count: int, folder: Path, monkeypatch: pytest.MonkeyPatch, result: int = 0) -> None:
    """A libcuda.so.1 that finds so many devices, on a machine with the driver's device file."""
    source = folder / "driver.c"
    source.write_text(
        f"int cuInit(unsigned f) {{ return {result}; }}\nint cuDeviceGetCount(int *n) {{ *n = {count}; return {result}; }}\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setattr(devices, "DRIVER_FILES", (folder / "driver.c",))


@pytest.mark.parametrize("place", ["a link", "a file", "a folder for everybody"])
def test_locks_that_others_could_hold_are_refused(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0")
    locks = tmp_path / "locks"
    if place == "a link":
        locks.symlink_to(tmp_path)
    elif place == "a file":
        locks.touch()
    else:
        locks.mkdir()
        locks.chmod(0o777)
    with pytest.raises(UserError, match="locks must be a folder that you alone"), own_devices(1):
        pass
