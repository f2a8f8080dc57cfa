"""What isolation costs: a call of the sandbox, cold and warm, beside the start of a bare interpreter in the same run.

    python benchmarks/sandbox.py

`bare` is `python -I -S -c 'print(1)'` by the interpreter that runs inside, without isolation, through asyncio like the others.
They are taken in turns, so that what else the machine does falls on all alike. Throughput is that of 64 calls in flight over as
many sandboxes as there are cores.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable

from dagrpo_sandbox import Limits, SandboxPool, run_cold
from dagrpo_sandbox.bubblewrap import find_installation

REPEATS = 60
CALLS = 1000
IN_FLIGHT = 64
PROGRAM = "print(1)"


async def main() -> None:
    """Prints a row for each way of running a program."""
    limits = Limits()
    installation = find_installation()
    async with SandboxPool(limits, size=os.cpu_count() or 1) as pool:
        session = pool.session()
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "bare": lambda: _bare(str(installation.python)),
            "cold": lambda: run_cold(PROGRAM, limits),
            "warm": lambda: pool.run(PROGRAM),
            "session": lambda: session.run(PROGRAM),
        }
        times = await _in_turns(ways)
        bare = statistics.median(times["bare"])
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {installation.bwrap}, {installation.python}")
        for name, seconds in times.items():
            median, slow = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
            print(f"{name:8} median {median * 1e3:6.1f} ms ({median / bare:.2f} x bare), p95 {slow * 1e3:6.1f} ms")
        print(f"{IN_FLIGHT} in flight: {await _throughput(pool):.0f} calls a second")
        await session.close()


async def _bare(python: str) -> None:
    process = await asyncio.create_subprocess_exec(
        python, "-I", "-S", "-c", PROGRAM, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    await process.communicate()


async def _in_turns(ways: dict[str, Callable[[], Awaitable[object]]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            start = time.perf_counter()
            await way()
            times[name].append(time.perf_counter() - start)
    return times


async def _throughput(pool: SandboxPool) -> float:
    in_flight = asyncio.Semaphore(IN_FLIGHT)

    async def one(number: int) -> None:
        async with in_flight:
            assert (await pool.run(f"print({number})")).stdout == f"{number}\n"

    start = time.perf_counter()
    await asyncio.gather(*map(one, range(CALLS)))
    return CALLS / (time.perf_counter() - start)


if __name__ == "__main__":
    asyncio.run(main())
