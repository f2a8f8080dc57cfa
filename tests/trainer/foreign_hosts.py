"""Runs of another trainer's stand-in on several hosts, whose policy is that of one host."""

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hosts import SECONDS, Host, launched, wait_for
from tests.trainer import foreign_runs

from dagrpo.config.overlay import merged
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.tables import read_parquet

ON_TWO: dict[str, Any] = {"runtime": {"nodes": 2, "training": {"processes": 1}}}


def command(folder: Path, changes: dict[str, Any]) -> list[str]:
    """Return the arguments of a node."""
    return [foreign_runs.__file__, str(folder), json.dumps(changes)]


def lose_last(hosts: Sequence[Host], folder: Path, changes: dict[str, Any], saved: str, hangs_after: int) -> None:
    """Kill the last host while all hang after the checkpoint `saved`, and end the first as `srun` does then."""
    run = foreign_runs.run_in(folder, changes)
    first, *_ = launched(hosts, folder, command(folder, changes), STAND_IN_HANGS_AFTER=str(hangs_after))
    wait_for(run.state / "checkpoints" / saved, first)
    time.sleep(2)  # into the third step, after which it hangs
    hosts[-1].kill()
    first.terminate()
    said, _ = first.communicate(timeout=SECONDS)
    assert first.returncode == 128 + signal.SIGTERM, said


def require_policy_of_one_host(hosts: Sequence[Host], folder: Path, changes: dict[str, Any]) -> None:
    """Let two hosts go on with a run, and compare what they leave with a run of one host."""
    (folder / "one").mkdir()
    alone = foreign_runs.run_in(folder / "one", changes)
    foreign_runs.train(alone)
    both = merged(changes, ON_TWO)
    first, other = launched(hosts, folder, command(folder, both))
    said, _ = first.communicate(timeout=SECONDS)
    assert (first.returncode, other.wait(SECONDS)) == (0, 0), said
    run = foreign_runs.run_of(folder, both)
    assert (run.policy / MANIFEST).read_bytes() == (alone.policy / MANIFEST).read_bytes()
    assert read_parquet(run.metrics).to_pydict() == read_parquet(alone.metrics).to_pydict()
