import os
from pathlib import Path

import psutil
import pytest
import torch

from dagrpo.pipeline.declaration import threads_of
from dagrpo.pipeline.stages import all_stages
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils import machine
from dagrpo.utils.distributed import World, process_group, single_process

BOTH = {"training.dtype": "bfloat16", "rollout.dtype": "float32"}


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a container finds its limits; empty: a machine without any."""
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    return tmp_path


def write(cgroup: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (cgroup / name).parent.mkdir(exist_ok=True)
        (cgroup / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 16),
        ({"cpu.max": "max 100000\n"}, 16),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 16),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 16),
        ({"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
    ],
)
def test_processors_are_those_of_the_process_or_its_containers_share(
    cgroup: Path, files: dict[str, str], count: int
) -> None:
    write(cgroup, files)
    assert machine.processors() == count


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_container_has_less_memory_than_its_machine(cgroup: Path, name: str) -> None:
    assert machine.memory_of_machine() == psutil.virtual_memory().total
    write(cgroup, {"memory.max": "max\n"})
    write(cgroup, {name: "1000000\n"})
    assert machine.memory_of_machine() == 1_000_000


def _taking(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
    monkeypatch.setattr(machine, "_seconds", seconds.__getitem__)


def test_the_slowest_of_several_types_gives_the_factor_and_a_fast_one_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert machine.times_as_long("bfloat16") > 0, "by a real product"
    _taking(monkeypatch, {"float32": 1.0, "bfloat16": 2.0, "float16": 7.0})
    told = machine.warning({"training.dtype": "bfloat16", "sft.dtype": "float16"})
    assert told is not None
    assert "training.dtype (bfloat16) and sft.dtype (float16): a matrix product takes 7.0 times" in told
    _taking(monkeypatch, {"float32": 1.0, "bfloat16": 1.4})
    assert machine.warning(BOTH) is None


@pytest.mark.parametrize(("rank", "device", "is_told"), [(0, "cpu", True), (1, "cpu", False), (0, "meta", False)])
def test_only_rank_zero_on_a_cpu_says_it(
    rank: int, device: str, is_told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _taking(monkeypatch, {"float32": 1.0, "bfloat16": 9.0})
    world = single_process() if rank == 0 and device == "cpu" else World(rank=rank, size=2, device=torch.device(device))
    machine.warn_of_slow_types(BOTH, world)
    assert ("9.0 times as long" in capsys.readouterr().err) is is_told


@pytest.mark.parametrize(
    ("stage", "section", "threads", "cores"),
    [
        ("sft", {"sft": {"processes": 1}}, 2, 2),
        ("sft", {"sft": {"processes": 4}}, 1, 4),
        ("train", {"training": {"processes": 2}}, 1, 2),
        ("train", {"training": {"processes": 1, "threads": 4}}, 4, 4),
        ("train", {"training": {"processes": 2, "threads": 3}}, 3, 6),
    ],
)
def test_each_process_has_its_share_of_threads_or_those_of_its_parameter(
    stage: str, section: dict[str, object], threads: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime.model_validate(section)
    assert threads_of(all_stages()[stage], runtime) == threads
    assert all_stages()[stage].needs(runtime).threads == cores
    for name in machine.READ_BY_LIBRARIES:
        monkeypatch.setenv(name, "64")
    machine.fix_threads(threads)
    assert {os.environ[name] for name in machine.READ_BY_LIBRARIES} == {str(threads)}
    before = torch.get_num_threads()
    try:
        with process_group(threads):
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
