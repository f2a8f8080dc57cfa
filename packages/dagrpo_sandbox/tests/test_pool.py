"""Many programs at a time, sessions, and what is left when a caller goes away."""

import asyncio
import contextlib
import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
from packages.dagrpo_sandbox.tests.running import without_sandbox

from dagrpo_sandbox import Limits, SandboxClosed, SandboxPool, SandboxUnavailable, run_cold
from dagrpo_sandbox.pool import TRIES

LIMITS = Limits(seconds=10.0)


@asynccontextmanager
async def _opened(limits: Limits, size: int) -> AsyncIterator[SandboxPool]:
    pool = SandboxPool(limits, size=size)
    try:
        await pool.__aenter__()
    except SandboxUnavailable as error:
        without_sandbox(error)
    try:
        yield pool
    finally:
        await pool.__aexit__(None, None, None)


def in_pool(limits: Limits = LIMITS, size: int = 2) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an asynchronous test in an event loop and a pool of its own, its first argument."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def opened(parameters: dict[str, Any]) -> None:
            async with _opened(limits, size) as pool:
                await test(pool, **parameters)

        def run(**parameters: Any) -> None:
            asyncio.run(opened(parameters))

        signature = inspect.signature(test)
        run.__name__, run.__doc__ = test.__name__, test.__doc__
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
        return run

    return decorate


@in_pool()
async def test_an_exception_is_answered_with_the_traceback_of_the_program_alone(pool: SandboxPool) -> None:
    result = await pool.run("def half(x):\n    return x / 0\nhalf(1)")
    assert result.status == "error"
    lines = result.stdout.splitlines()
    assert lines[:2] == ["Traceback (most recent call last):", '  File "<program>", line 3, in <module>']
    assert "    return x / 0" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"


ENDINGS: list[tuple[str, str | None, str | None]] = [
    ("import sys; sys.exit()", "ok", ""),
    ("import sys; sys.exit(3)", "error", ""),
    ("import sys; sys.exit('because')", "error", "because\n"),
    ("import os; os._exit(0)", "ok", ""),
    ("import os; os._exit(3)", "error", ""),
    ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print(1))).start()", "ok", "1\n"),
    ("import sys; sys.stdout.buffer.write(b'\\xff')", "ok", "\ufffd"),
    ("input()", "error", None),
    ("import subprocess; print(subprocess.run(['/usr/bin/env'], capture_output=True).returncode)", "ok", "0\n"),
    ("import multiprocessing.dummy; print(multiprocessing.dummy.Pool(2).map(abs, [-1, -2]))", "ok", "[1, 2]\n"),
    ("import asyncio; print(asyncio.run(asyncio.sleep(0, 7)))", "ok", "7\n"),
    # what a program says in the place of its interpreter
    *((f"import os; os.write(4, b'{said}')", None, None) for said in ("{", "\\0", "T", "KKKK")),
]


@in_pool(size=1)
async def test_programs_end_as_they_would_outside(pool: SandboxPool) -> None:
    for program, status, output in ENDINGS:
        result = await pool.run(program)
        assert result.status == status or (status is None and result.status in ("ok", "error")), program
        assert output is None or result.stdout == output
        session = pool.session()
        assert (await session.run(program)).status in ("ok", "error"), program
        assert (await pool.run("print(6 * 7)")).stdout == "42\n"
        await session.close()


@in_pool()
async def test_sets_are_in_the_same_order_in_every_sandbox(pool: SandboxPool) -> None:
    program = "print(list({'red', 'green', 'blue', 'white', 'black'}), hash('x'))"
    results = [await pool.run(program), await pool.run(program), await run_cold(program, LIMITS)]
    assert len({result.stdout for result in results}) == 1


@in_pool()
async def test_a_session_keeps_variables_and_files_and_no_other_session_sees_them(pool: SandboxPool) -> None:
    one, other = pool.session(), pool.session()
    assert (await one.run("x = 5\nopen('/tmp/file', 'w').write('kept')")).status == "ok"
    assert (await one.run("x += 1\n1 / 0")).status == "error"
    assert (await one.run("import sys; sys.exit()")).status == "ok"
    assert (await one.run("print(x, open('/tmp/file').read())")).stdout == "6 kept\n"
    assert "NameError" in (await other.run("print(x)")).stdout
    assert "NameError" in (await pool.run("print(x)")).stdout
    await one.close()
    await other.close()


@pytest.mark.parametrize(
    "end", ["while True: pass", "import os; os.kill(os.getpid(), 9)", "while True: print('x' * 100)"]
)
@in_pool(Limits(seconds=1.0))
async def test_a_program_that_is_stopped_takes_its_session_with_it_and_the_next_begins_anew(
    pool: SandboxPool, end: str
) -> None:
    session = pool.session()
    await session.run("x = 5")
    assert (await session.run(end)).status in ("timed_out", "killed", "output_limit")
    assert "NameError" in (await session.run("print(x)")).stdout
    assert (await session.run("print(1)")).stdout == "1\n"


@in_pool()
async def test_nothing_of_a_session_runs_between_its_programs(pool: SandboxPool) -> None:
    count = """
import os, threading, time
counted = 0
def count():
    global counted
    while True:
        counted += 1
        time.sleep(0.001)
threading.Thread(target=count, daemon=True).start()
if os.fork() == 0:
    while True:
        os.write(files, b"x")
        time.sleep(0.001)
"""
    session = pool.session()
    await session.run("import os; files = os.open('/tmp/counted', os.O_RDWR | os.O_CREAT)")
    await session.run(count)
    first = await session.run("before = counted, os.fstat(files).st_size")
    assert first.status == "ok"
    await asyncio.sleep(0.5)
    after = await session.run("print(counted - before[0], os.fstat(files).st_size - before[1])")
    assert max(map(int, after.stdout.split())) < 100
    grown = await session.run("while counted - before[0] <= 100: time.sleep(0.01)")
    assert grown.status == "ok"


@in_pool(Limits(seconds=600.0), size=1)
async def test_a_call_that_nobody_waits_for_any_more_is_ended(pool: SandboxPool) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.run("import time; time.sleep(600)"), 0.3)
    assert (await pool.run("print(1)")).stdout == "1\n"


def _kill_sandboxes() -> None:
    """As a system does that is short of memory. Nothing of them runs any more."""
    inside = psutil.Process().children(recursive=True)
    for child in psutil.Process().children():
        child.kill()
    while any(_runs(process) for process in inside):
        time.sleep(0.01)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@in_pool(size=2)
async def test_a_sandbox_that_is_killed_while_it_waits_is_no_programs_fault(pool: SandboxPool) -> None:
    _kill_sandboxes()
    results = await asyncio.gather(pool.run("print(1)"), pool.run("print(2)"), pool.session().run("print(3)"))
    assert [(result.status, result.stdout) for result in results] == [("ok", f"{n}\n") for n in (1, 2, 3)]


@pytest.mark.parametrize(("kills", "status"), [(1, "ok"), pytest.param(TRIES, "killed", marks=pytest.mark.nightly)])
@in_pool(size=1)
async def test_a_program_whose_sandbox_is_killed_is_run_again(pool: SandboxPool, kills: int, status: str) -> None:
    running = asyncio.create_task(pool.run("import time; time.sleep(2); print(1)"))
    for _ in range(kills):
        await asyncio.sleep(1)
        _kill_sandboxes()
    assert (await running).status == status
    assert (await pool.run("print(2)")).stdout == "2\n"


@pytest.mark.parametrize("program", ["print(x)", "import time; time.sleep(60)"])
@in_pool(size=1)
async def test_a_session_whose_variables_are_lost_from_outside_goes_on_with_no_others(
    pool: SandboxPool, program: str
) -> None:
    session = pool.session()
    await session.run("x = 1")
    running = asyncio.create_task(session.run(program)) if "sleep" in program else None
    await asyncio.sleep(0.5)
    _kill_sandboxes()
    for attempt in (running or session.run(program), session.run("print(2)")):
        with pytest.raises(SandboxUnavailable, match="its variables are lost"):
            await attempt
    assert (await pool.session().run("print(3)")).stdout == "3\n"


@pytest.mark.nightly
def test_a_thousand_calls_at_64_in_flight_leave_nothing_behind() -> None:
    async def use(pool: SandboxPool) -> None:
        in_flight = asyncio.Semaphore(64)

        async def one(number: int) -> None:
            async with in_flight:
                result = await pool.run("1 / 0" if number % 100 == 99 else f"print({number})")
                assert result.stdout.endswith("zero\n") if number % 100 == 99 else result.stdout == f"{number}\n"

        await asyncio.gather(*map(one, range(1000)))

    in_pool()(lambda pool: asyncio.sleep(0))()  # whatever asyncio opens once
    before, children = set(os.listdir("/proc/self/fd")), _children()
    in_pool(size=4)(use)()
    assert _children() - children == set()
    assert set(os.listdir("/proc/self/fd")) - before == set()


def test_a_pool_that_is_left_by_an_error_leaves_nothing_behind() -> None:
    async def use(pool: SandboxPool) -> None:
        session = pool.session()
        await session.run("import os\nif os.fork() == 0:\n  import time; time.sleep(600)")
        pending = asyncio.create_task(pool.run("import time; time.sleep(600)"))
        await asyncio.sleep(0.1)
        pending.cancel()
        raise KeyError("something else")

    children = _children()
    with pytest.raises(KeyError):
        in_pool(Limits(seconds=600.0))(use)()
    assert _children() - children == set()


def _children() -> set[psutil.Process]:
    """Processes below this one; other tests of the same worker may have left some, such as multiprocessing's own."""
    return set(psutil.Process().children(recursive=True))


def test_a_start_that_is_given_up_at_any_moment_leaves_nothing_behind() -> None:
    limits = Limits(output_bytes=100_000 + os.getpid())  # by which the sandboxes of this test are known

    async def give_up(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(run_cold("import time; time.sleep(600)", limits), seconds)

    async def give_up_many() -> None:
        async with _opened(LIMITS, 1):  # or the test is skipped
            for attempt in range(24):
                await give_up(0.004 + 0.003 * attempt)

    asyncio.run(give_up_many())
    deadline = time.monotonic() + 30
    while (left := _commands_with(str(limits.output_bytes))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def _commands_with(word: str) -> list[list[str]]:
    return [
        command for process in psutil.process_iter(["cmdline"]) if word in (command := process.info["cmdline"] or [])
    ]


@in_pool(size=1)
async def test_a_session_that_is_closed_takes_no_program_and_says_so(pool: SandboxPool) -> None:
    session = pool.session()
    running = [asyncio.create_task(session.run("import time; time.sleep(60)")) for _ in range(2)]
    await asyncio.sleep(0.5)
    await session.close()
    await session.close()
    for attempt in (*running, session.run("print(1)")):
        with pytest.raises(SandboxClosed, match="the session is closed"):
            await attempt
    assert (await pool.run("print(2)")).stdout == "2\n"


@in_pool(size=1)
async def test_a_pool_that_is_closed_takes_no_program_and_says_so(pool: SandboxPool) -> None:
    session = pool.session()
    running = [asyncio.create_task(pool.run("import time; time.sleep(60)")) for _ in range(2)]
    await asyncio.sleep(0.5)
    await pool.__aexit__(None, None, None)
    for attempt in (*running, pool.run("print(1)"), pool.session().run("print(1)")):
        with pytest.raises(SandboxClosed, match="the pool is closed"):
            await attempt
    with pytest.raises(SandboxClosed, match="the session is closed"):
        await session.run("print(1)")


@in_pool()
async def test_programs_of_one_session_run_one_after_the_other(pool: SandboxPool) -> None:
    session = pool.session()
    await session.run("seen = []")
    await asyncio.gather(*(session.run(f"seen.append({number})") for number in range(8)))
    assert (await session.run("print(seen)")).stdout == "[0, 1, 2, 3, 4, 5, 6, 7]\n"


@in_pool(size=2)
async def test_a_call_that_is_given_up_while_it_waits_takes_no_sandbox_away(pool: SandboxPool) -> None:
    waiting = [asyncio.create_task(pool.run("import time; time.sleep(0.2)")) for _ in range(4)]
    await asyncio.sleep(0)
    for task in waiting[1:]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    results = await asyncio.gather(*(pool.run("print(1)") for _ in range(4)))
    assert [result.stdout for result in results] == ["1\n"] * 4


@in_pool(size=1)
async def test_a_session_whose_sandbox_is_killed_runs_its_first_program_again(pool: SandboxPool) -> None:
    session = pool.session()
    running = asyncio.create_task(session.run("import time; time.sleep(2); x = 1"))
    await asyncio.sleep(0.5)
    _kill_sandboxes()
    assert (await running).status == "ok"
    assert (await session.run("print(x)")).stdout == "1\n"
