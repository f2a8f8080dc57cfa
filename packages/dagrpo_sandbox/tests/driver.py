"""Runs programs as told on stdin, one JSON line each: a process of its own, so that it can be anybody, and be killed."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

from dagrpo_sandbox import Limits, Result, SandboxPool, SandboxUnavailable, run_cold


async def _answer(order: dict[str, Any], pools: dict[str, SandboxPool], stack: AsyncExitStack) -> Result:
    limits = Limits(**order["limits"])
    if order["cold"]:
        return await run_cold(order["program"], limits)
    key = json.dumps(order["limits"], sort_keys=True)
    if key not in pools:
        pools[key] = await stack.enter_async_context(SandboxPool(limits, size=1))
    return await pools[key].run(order["program"])


async def main() -> None:
    """Each order is answered before the next one is read."""
    pools: dict[str, SandboxPool] = {}
    async with AsyncExitStack() as stack:
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                answer = asdict(await _answer(json.loads(line), pools, stack))
            except SandboxUnavailable as error:
                answer = {"unavailable": str(error)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
