"""Whole runs with a scripted engine and a judge or a program that is theirs to fail: exclusions, weights, repetition."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engine.scripted import ScriptedServer
from tests.trainer import runs

from dagrpo.core.errors import UserError
from dagrpo.pipeline.stages.train import rows_to_show
from dagrpo.rewards.config import Reward
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.tables import read_parquet

STEPS = 3


def _verdict(body: dict[str, Any]) -> str:
    """No verdict where the attempt begins with one of a few letters, else a score by its letters."""
    attempt = body["messages"][-1]["content"].rpartition("<attempt>\n")[2].split("\n</attempt>")[0]
    return "hm" if attempt[:1] in "0123456" else json.dumps({"score": sum(map(ord, attempt)) % 6})


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    def answered(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        usage = {"prompt_tokens": 50, "completion_tokens": 5}
        return 200, {"choices": [{"message": {"content": _verdict(body)}}], "usage": usage}

    server = ScriptedServer(answered)
    yield server
    server.http.shutdown()
    server.http.server_close()


def _run(inputs: tuple[Path, Path], out: Path, folder: Path, address: str, max_excluded: float = 0.9) -> TrainingRun:
    (folder / "rubric.txt").write_text("Score {attempt}")
    judge = {
        "url": f"{address}/v1",
        "model": "m",
        "rubric": str(folder / "rubric.txt"),
        "answers": str(folder / "answers.jsonl"),
        "best": 5,
        "reasons": False,
        "retries": 0,
    }
    overlong = {"buffer": 1, "weight": 1.0, "final_weight": 0.0, "final_step": 3}
    reward = Reward.model_validate({"components": {"judge": judge, "overlong": overlong}})
    run = runs.training_run(inputs, out / "state", out, steps=STEPS)
    rollout = {**run.rollout.model_dump(), "agent": {"name": "tool_agent", "max_excluded": max_excluded}}
    return replace(run, reward=reward, rollout=Rollout.model_validate(rollout))


def test_a_run_repeats_byte_for_byte_without_its_judge(
    inputs: tuple[Path, Path], tmp_path: Path, server: ScriptedServer
) -> None:
    first = _run(inputs, tmp_path / "first", tmp_path, server.address)
    runs.execute(first)
    server.http.shutdown()
    server.http.server_close()
    again = _run(inputs, tmp_path / "again", tmp_path, server.address)
    runs.execute(again)
    assert again.metrics.read_bytes() == first.metrics.read_bytes()
    for step in range(1, STEPS + 1):
        name = f"step_{step:05d}.parquet"
        assert again.rollouts.with_name(name).read_bytes() == first.rollouts.with_name(name).read_bytes()

    rows = [row for step in range(1, STEPS + 1) for row in _rows(first, step)]
    excluded = [row for row in rows if row["stop_reason"] == "excluded"]
    assert 0 < len(excluded) < len(rows)
    assert {row["fault"] for row in excluded} == {"no value of judge"}
    assert all("judge" not in dict(row["components"]) and row["advantage"] == 0.0 for row in excluded)
    for row in rows:
        parts = dict(row["components"])
        weight = (1.0, 0.5, 0.0)[row["step"] - 1]
        assert row["reward"] == pytest.approx(parts.get("judge", 0.0) + weight * parts["overlong"])
    metrics = read_parquet(first.metrics).to_pydict()
    assert 0 < metrics["reward/judge_calls"][0] <= len(_rows(first, 1)), "not about attempts without an answer"
    assert metrics["reward/judge_tokens"][0] == 55 * metrics["reward/judge_calls"][0]
    excluded_in = [sum(row["stop_reason"] == "excluded" for row in _rows(first, s + 1)) for s in range(STEPS)]
    judged = [calls - count for calls, count in zip(metrics["reward/judge_calls"], excluded_in, strict=True)]
    share = [count / each for count, each in zip(excluded_in, judged, strict=True)]  # these were asked about twice
    assert metrics["reward/judge_unparsable_fraction"] == pytest.approx(share)


def _rows(run: TrainingRun, step: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_parquet(run.rollouts.with_name(f"step_{step:05d}.parquet")).to_pylist()
    return rows


def test_too_many_attempts_without_a_verdict_end_the_run(
    inputs: tuple[Path, Path], tmp_path: Path, server: ScriptedServer
) -> None:
    run = _run(inputs, tmp_path / "out", tmp_path, server.address, max_excluded=0.0)
    with pytest.raises(UserError, match=r"\d of 16 trajectories were excluded, .* 'no value of judge' \(\d times\)"):
        runs.execute(run)


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


def _run_of_programs(inputs: tuple[Path, Path], folder: Path, fails: str, **changes: Any) -> TrainingRun:
    (folder / "agent.py").write_text(SERVE)
    agent = {"name": "program", "command": [sys.executable, str(folder / "agent.py"), fails], "serve": True}
    rollout = Rollout.model_validate({"max_new_tokens": runs.MAX_NEW_TOKENS, "agent": agent})
    run = runs.training_run(inputs, folder / "state", folder, steps=2)
    return replace(run, rollout=rollout, **changes)


def test_a_program_that_fails_in_most_attempts_is_told_once_and_counted_at_the_end(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _, reported = runs.execute(_run_of_programs(inputs, tmp_path, "some"))
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "program_failed" in line]
    assert told == (
        "train (seed 7), step 1: 12 of 16 attempts ended with program_failed, such as: The program says: dead "
        "(state/agent/program.log)"
    )
    rows = dict(rows_to_show([metrics for _, metrics in reported]))
    assert rows["attempts whose program failed, last 10 steps"] == "75.0%"


def test_a_step_in_which_every_attempt_has_failed_stops_the_run(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"step 1: the agent's program failed in every one of 16 attempts: .*dead"):
        runs.execute(_run_of_programs(inputs, tmp_path, "all"))


def test_a_program_that_reports_nothing_has_failed_where_what_it_reports_is_the_reward(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    reward = Reward.model_validate({"components": {"accuracy": {}, "reported": {}}})
    with pytest.raises(UserError, match=r"failed in every one .*'The program has reported no reward\.' \(16 times\)"):
        runs.execute(_run_of_programs(inputs, tmp_path, "silent", reward=reward))
