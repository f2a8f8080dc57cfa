"""Megatron-LM's stand-in on two hosts: the policy of one host, and an end in bounded time when one is gone."""

from pathlib import Path
from typing import Any

import pytest
from tests.hosts import two_hosts
from tests.trainer import foreign_hosts, foreign_runs

from dagrpo.config.overlay import merged

CHANGES: dict[str, Any] = {
    "training": {"mini_batches": 2, "backend": {"name": "megatron_lm"}},
    "runtime": {"backend": {"silent_minutes": 8, "source": str(foreign_runs.STAND_INS["megatron_lm"])}},
}
ON_TWO = merged(CHANGES, foreign_hosts.ON_TWO)
pytestmark = pytest.mark.nightly


def test_two_hosts_leave_the_policy_of_one_host_with_as_many_processes_also_after_one_was_killed(
    tmp_path: Path,
) -> None:
    with two_hosts() as hosts:
        foreign_hosts.lose_last(hosts, tmp_path, ON_TWO, "iter_0000004/common.pt", hangs_after=6)
        foreign_hosts.require_policy_of_one_host(hosts, tmp_path, CHANGES)
