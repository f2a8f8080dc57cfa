"""A training whose attempts a program makes, which fails in some of them or in all."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer import runs

from dagrpo.core.errors import UserError
from dagrpo.pipeline.stages.train import rows_to_show
from dagrpo.rewards.config import Reward
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.run import TrainingRun

SERVE = """
import json, sys, threading, urllib.request
FAILS = {"some": lambda attempt: attempt > 0, "all": lambda attempt: True}.get(sys.argv[1], lambda attempt: False)
def work(line):
    request = urllib.request.Request(line["base_url"] + "/chat/completions",
                                     json.dumps({"messages": line["problem"]["messages"]}).encode(),
                                     {"Authorization": "Bearer " + line["api_key"], "Content-Type": "application/json"})
    urllib.request.urlopen(request).read()
    answer = {"error": "dead"} if FAILS(line["problem"]["attempt"]) else {} if sys.argv[1] == "silent" else {"reward": 1.0}
    print(json.dumps({"id": line["id"], **answer}), flush=True)
print("ready", file=sys.stderr, flush=True)
for line in map(json.loads, sys.stdin):
    if "problem" in line:
        threading.Thread(target=work, args=(line,)).start()
"""


def _run(inputs: tuple[Path, Path], folder: Path, fails: str, **changes: Any) -> TrainingRun:
    (folder / "agent.py").write_text(SERVE)
    agent = {"name": "program", "command": [sys.executable, str(folder / "agent.py"), fails], "serve": True}
    rollout = Rollout.model_validate({"max_new_tokens": runs.MAX_NEW_TOKENS, "agent": agent})
    run = runs.training_run(inputs, folder / "state", folder, steps=2)
    return replace(run, rollout=rollout, **changes)


def test_a_program_that_fails_in_most_attempts_is_told_once_and_counted_at_the_end(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _, reported = runs.execute(_run(inputs, tmp_path, "some"))
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "program_failed" in line]
    assert told == (
        "train (seed 7), step 1: 12 of 16 attempts ended with program_failed, such as: The program says: dead "
        "(state/agent/program.log)"
    )
    rows = dict(rows_to_show([metrics for _, metrics in reported]))
    assert rows["attempts whose program failed, last 10 steps"] == "75.0%"


def test_a_step_in_which_every_attempt_has_failed_stops_the_run(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"step 1: the agent's program failed in every one of 16 attempts: .*dead"):
        runs.execute(_run(inputs, tmp_path, "all"))


def test_a_program_that_reports_nothing_has_failed_where_what_it_reports_is_the_reward(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    reward = Reward.model_validate({"components": {"accuracy": {}, "reported": {}}})
    with pytest.raises(UserError, match=r"failed in every one .*'The program has reported no reward\.' \(16 times\)"):
        runs.execute(_run(inputs, tmp_path, "silent", reward=reward))
