"""Megatron-LM's stand-in on two hosts: the policy of one host, and an end in bounded time when one is gone."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import SECONDS, Host, launched, two_hosts, wait_for
from tests.trainer import foreign_runs

from dagrpo.config.overlay import merged
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.tables import read_parquet

CHANGES: dict[str, Any] = {
    "training": {"mini_batches": 2, "backend": {"name": "megatron_lm"}},
    "runtime": {"backend": {"silent_minutes": 8, "source": str(foreign_runs.STAND_INS["megatron_lm"])}},
}
ON_TWO = merged(CHANGES, {"runtime": {"nodes": 2, "training": {"processes": 1}}})
pytestmark = pytest.mark.nightly


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as both:
        yield both


def command(folder: Path) -> list[str]:
    return [foreign_runs.__file__, str(folder), json.dumps(ON_TWO)]


def test_two_hosts_leave_the_policy_of_one_host_with_as_many_processes_also_after_one_was_killed(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    alone = foreign_runs.run_in(tmp_path / "one", CHANGES)
    foreign_runs.train(alone)
    run = foreign_runs.run_in(tmp_path, ON_TWO)
    first, _ = launched(hosts, tmp_path, command(tmp_path), STAND_IN_HANGS_AFTER="6")
    wait_for(run.state / "checkpoints/iter_0000004/common.pt")
    time.sleep(2)  # into the third step, which hangs
    hosts[1].kill()
    first.terminate()  # as `srun` does when a task has ended
    said, _ = first.communicate(timeout=SECONDS)
    assert first.returncode == 128 + signal.SIGTERM, said
    again, other = launched(hosts, tmp_path, command(tmp_path))
    said, _ = again.communicate(timeout=SECONDS)
    assert (again.returncode, other.wait(SECONDS)) == (0, 0), said
    assert (run.policy / MANIFEST).read_bytes() == (alone.policy / MANIFEST).read_bytes()
    assert read_parquet(run.metrics).to_pydict() == read_parquet(alone.metrics).to_pydict()
