"""Ray itself on two hosts, as training.backend verl starts it.

DAGRPO_OBJECTIVES_PYTHON names the Python of an environment with Ray, as `make oracle` does.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from packages.dagrpo_verl.tests import ray_runs
from tests.hosts import SECONDS, launched, two_hosts, wait_for


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
