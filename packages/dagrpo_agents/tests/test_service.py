"""A program that makes many attempts: when it dies, whose attempts end with it."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo_agents.programs.attempt import ProgramFailure, report_in
from dagrpo_agents.programs.service import Service

# Answers all but the first request that any of its processes gets; that one it dies of, and leaves its stderr open.
DIES_ONCE = """
import json, subprocess, sys, time
from pathlib import Path
print("ready", flush=True)
for line in map(json.loads, sys.stdin):
    if not Path("died").exists():
        Path("died").touch()
        subprocess.Popen(["sleep", "2"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        raise SystemExit("dead")
    time.sleep(2)  # until the first process is cleared away
    print(json.dumps({"id": line["id"], "reward": 1}), flush=True)
"""


def _runs(service: Service) -> bool:
    return service._program is not None


def test_a_request_after_a_program_has_died_is_the_next_ones_though_the_first_is_still_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def run() -> None:
        service = Service([sys.executable, "-c", DIES_ONCE], os.environ, tmp_path)
        first = asyncio.create_task(service.request("first", {}))
        while not _runs(service):
            await asyncio.sleep(0.01)
        while _runs(service):
            await asyncio.sleep(0.01)
        assert (await service.request("second", {}))["reward"] == 1
        with pytest.raises(ProgramFailure, match="The program has ended: dead"):
            await first
        await service.stop()

    asyncio.run(asyncio.wait_for(run(), 30))


# ---- reports ----


def test_the_last_line_is_the_report() -> None:
    assert report_in(b'talk\n{"reward": 1}\n{"reward": 0.5, "rewards": {"style": 2}}\n\n') == {
        "style": 2.0,
        "reward": 0.5,
    }


@pytest.mark.parametrize(
    "report",
    [
        b'{"reward": "1"}',
        b'{"reward": 1e999}',
        b'{"reward": NaN}',
        b'{"rewards": {"style": -Infinity}}',
        b'{"reward": 1e39}',
        b'{"reward": 1%s}' % (b"0" * 400),
        b'{"rewards": [1]}',
        b'{"rewards": {"": 1}}',
        b'{"rewards": {"a\\u0007": 1}}',
    ],
)
def test_a_reward_that_is_no_number_is_the_programs_failure(report: bytes) -> None:
    with pytest.raises(ProgramFailure):
        report_in(report)


@given(st.binary(max_size=200))
def test_any_output_is_a_report_or_none(output: bytes) -> None:
    assert report_in(output) == {} or all(isinstance(value, float) for value in report_in(output).values())
