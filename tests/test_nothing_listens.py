"""Whatever a run starts is reached from no other machine: two processes that train, their SGLang server, the gateway.

`python -m dagrpo.pipeline.launch 2 tests/test_nothing_listens.py INITIAL SPLIT OUT` is that run. The servers that a user starts have
tests of their own: `dagrpo ui` in packages/dagrpo_mlflow/tests, `dagrpo search` in packages/dagrpo_agents/tests.
"""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.listening import beyond_loopback, open_sockets
from tests.trainer import runs

from dagrpo.rollout.config import Rollout
from dagrpo.trainer.training import train
from dagrpo.utils.distributed import process_group
from dagrpo.utils.tables import read_parquet

ROOT = Path(__file__).parents[1]
PROGRAM = """
import json, os, sys
from urllib.request import Request, urlopen
problem = json.load(sys.stdin)
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
body = json.dumps({"model": "policy", "messages": problem["messages"]}).encode()
urlopen(Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
"""


@pytest.mark.nightly
@pytest.mark.server
def test_nothing_that_a_run_starts_is_reached_from_another_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dagrpo.pipeline.launch", "2", __file__, *runs.make_inputs(tmp_path), tmp_path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    seen, outer = set[str](), set[str]()
    with subprocess.Popen([*map(str, command)], cwd=ROOT, env=environment) as launcher:
        while launcher.poll() is None:
            seen.update(open_sockets(launcher.pid))
            outer.update(beyond_loopback(launcher.pid))
            time.sleep(0.2)
    assert launcher.returncode == 0
    assert outer == set()
    assert any("sglang.launch_server" in one for one in seen)
    assert any(__file__ in one for one in seen), "gloo and the gateway"
    attempts = read_parquet(tmp_path / "rollouts/step_00001.parquet")
    assert set(attempts["fault"].to_pylist()) == {""}, "the gateway answered all programs"


def _train(initial: Path, split: Path, out: Path) -> None:
    """One step, in which a program makes the attempts."""
    (out / "program.py").write_text(PROGRAM)
    agent = {"name": "program", "command": [sys.executable, str(out / "program.py")]}
    rollout = Rollout.model_validate({"max_new_tokens": runs.MAX_NEW_TOKENS, "agent": agent})
    with process_group() as world:
        run = replace(runs.training_run((initial, split), out / "state", out, steps=1), rollout=rollout)
        train(run, lambda step, metrics: None, world)


if __name__ == "__main__":
    _train(*map(Path, sys.argv[1:]))
