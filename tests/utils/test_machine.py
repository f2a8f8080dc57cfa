import os
from pathlib import Path

import psutil
import pytest

from dagrpo.utils import machine


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
