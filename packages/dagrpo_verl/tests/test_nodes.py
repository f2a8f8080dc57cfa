"""verl's and Ray's stand-ins, and Ray itself, on two hosts: the policy of one host, and an end in bounded time."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages.dagrpo_verl.tests import ray_runs
from tests.hosts import SECONDS, launched, two_hosts, wait_for
from tests.trainer import foreign_hosts, foreign_runs

from dagrpo.config.overlay import merged
from dagrpo.core.errors import TransientError, UserError
from dagrpo.utils.distributed import single_process
from dagrpo_foreign.nodes import Nodes
from dagrpo_verl import cluster
from dagrpo_verl.cluster import Cluster, access, ray_over
from dagrpo_verl.cluster_check import absent

CHANGES: dict[str, Any] = {
    "training": {"backend": {"name": "verl"}},
    "runtime": {"backend": {"silent_minutes": 3}},
}


@pytest.mark.nightly
@pytest.mark.usefixtures("stand_in")
def test_two_hosts_leave_the_policy_of_one_host_also_after_one_was_killed(tmp_path: Path) -> None:
    changes = merged(CHANGES, foreign_hosts.ON_TWO)
    with two_hosts() as hosts:
        foreign_hosts.lose_last(hosts, tmp_path, changes, "global_step_2/actor/fsdp_config.json", hangs_after=3)
        foreign_hosts.require_policy_of_one_host(hosts, tmp_path, CHANGES)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's and Ray's stand-ins in every process."""
    monkeypatch.setenv("PYTHONPATH", foreign_runs.path_with("verl"))


def nodes_at(folder: Path, *addresses: str) -> Nodes:
    return Nodes(world=single_process(), addresses=addresses, state=folder)


def cluster_in(folder: Path, patience: float = 5.0) -> Cluster:
    return Cluster(
        python=sys.executable,
        gpus=8,
        cores=4,
        patience=patience,
        environment=access(folder),
        logs=(str(folder / "head.log"), str(folder / "other.log")),
        folder=folder,
    )


def test_two_nodes_on_one_machine_are_there_when_both_have_joined() -> None:
    assert absent(["a", "a", "b"], ["a", "b"]) == [1]
    assert absent(["a", "a", "b"], ["b", "a", "a"]) == []


def test_every_start_has_a_new_token_that_nobody_else_reads(tmp_path: Path) -> None:
    tokens = set()
    for _ in range(2):
        path = Path(access(tmp_path)["RAY_AUTH_TOKEN_PATH"])
        assert path.stat().st_mode & 0o777 == 0o600
        tokens.add(path.read_text())
    assert len(tokens) == 2


@pytest.mark.usefixtures("stand_in")
def test_a_node_that_does_not_join_ray_in_time_is_named_with_its_log(tmp_path: Path) -> None:
    both = nodes_at(tmp_path, "127.0.0.1", "127.0.0.2")
    message = r"Ray has 1 of 2 nodes after 2 seconds .*: node 1 \(127\.0\.0\.2\) has not joined it\. See .*other\.log"
    with pytest.raises(UserError, match=message), ray_over(both, cluster_in(tmp_path, patience=2.0)):
        pass


@pytest.mark.usefixtures("stand_in")
def test_a_head_that_ends_is_named_with_its_node(tmp_path: Path) -> None:
    nobody = replace(cluster_in(tmp_path), gpus=0)  # which the stand-in does not take
    message = r"^Ray of node 0 \(127\.0\.0\.1\) ended with exit code 1: see .*head"
    with pytest.raises(TransientError, match=message), ray_over(nodes_at(tmp_path, "127.0.0.1"), nobody):
        pass


@pytest.mark.usefixtures("stand_in")
def test_a_ray_that_does_not_answer_is_no_mistake_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SECONDS_TO_CONNECT", -4.999)
    message = r"Ray at .* does not tell its nodes: what asks it has not ended within"
    with pytest.raises(TransientError, match=message), ray_over(nodes_at(tmp_path, "127.0.0.1"), cluster_in(tmp_path)):
        pass


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of the environment with Ray."""
    path = os.environ.get("DAGRPO_OBJECTIVES_PYTHON", "")
    if not path or subprocess.run([path, "-c", "import ray"], check=False).returncode:
        pytest.skip("DAGRPO_OBJECTIVES_PYTHON names no Python of an environment with Ray: `make oracle` makes one")
    return path


@pytest.mark.nightly
def test_a_head_and_a_node_that_joins_it_are_one_ray_for_the_holder_of_the_token_and_end_together(
    python: str, tmp_path: Path
) -> None:
    with two_hosts() as hosts:
        first, second = launched(hosts, tmp_path, [ray_runs.__file__, str(tmp_path), python])
        wait_for(tmp_path / "found.json", first)
        (tmp_path / "enough").touch()
        said, _ = first.communicate(timeout=SECONDS)
        assert (first.returncode, second.wait(SECONDS)) == (0, 0), said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["stranger"] != 0
    assert found["nodes"] == [host.address for host in hosts]
    assert found["gpus"] == 4
    assert found["tasks"] == [["a", "to all", False], ["b", "to all", False]]
    assert [json.loads((tmp_path / f"left_{node}.json").read_text()) for node in (0, 1)] == [[], []]
