"""Pipe between verl's agent loops and the process that makes their attempts."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from dagrpo_verl.agent_loop import AttemptProcess

FINISHES_ONE = """
import json, sys
number = json.loads(sys.stdin.readline())["attempt"]
print(json.dumps({"attempt": number, "done": {"reward": 1.0}}), flush=True)
"""
WRITES_NO_JSON = "input(); print('Killed', flush=True); input()"


async def no_policy(question: Mapping[str, Any]) -> dict[str, Any]:
    raise AssertionError("no token is asked for")


async def made(process: AttemptProcess) -> list[Any]:
    """Return what becomes of two attempts, one after the other."""
    place = {"step": 1, "index": 0, "sample": 0}
    found = []
    for _ in range(2):
        async with asyncio.timeout(20):
            found.append(await asyncio.gather(process.make(place, no_policy), return_exceptions=True))
        await asyncio.sleep(0.2)  # the process ends
    return [each for (each,) in found]


def test_a_process_that_has_ended_is_started_again_by_the_next_attempt() -> None:
    assert asyncio.run(made(AttemptProcess([sys.executable, "-c", FINISHES_ONE]))) == 2 * [{"reward": 1.0}]


def test_a_process_that_writes_no_json_leaves_no_attempt_waiting() -> None:
    for each in asyncio.run(made(AttemptProcess([sys.executable, "-c", WRITES_NO_JSON]))):
        assert isinstance(each, RuntimeError)
        assert "has ended" in str(each)
