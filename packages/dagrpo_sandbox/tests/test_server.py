"""Sandbox Fusion's protocol over our own sandboxes."""

import asyncio
import math
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
from aiohttp import ClientSession, ClientTimeout
from aiohttp.test_utils import TestClient, TestServer
from packages.dagrpo_sandbox.tests.running import without_sandbox

from dagrpo_sandbox import Limits, SandboxUnavailable, server
from dagrpo_sandbox.bubblewrap import find_installation
from dagrpo_sandbox.sandbox import EXCESSES
from dagrpo_sandbox.server import application

LIMITS = Limits(seconds=5.0)


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap() -> None:
    try:
        find_installation()
    except SandboxUnavailable as error:
        without_sandbox(error)


@asynccontextmanager
async def _client() -> AsyncIterator[Any]:
    async with TestClient(TestServer(application(LIMITS, 2))) as client:
        yield client


def _run(code: str, **body: Any) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with _client() as client:
            response = await client.post("/run_code", json={"code": code, "language": "python", **body})
            assert response.status == 200
            return dict(await response.json())

    return asyncio.run(ask())


def test_a_program_ends_as_the_protocol_has_it_and_a_request_may_lower_the_limits() -> None:
    answer = _run("print(6 * 7)")
    assert answer["run_result"].pop("execution_time") > 0
    run_result = {"status": "Finished", "return_code": 0, "stdout": "42\n", "stderr": ""}
    assert answer == {"status": "Success", "message": "", "compile_result": None, "run_result": run_result, "files": {}}
    answer = _run("1 / 0")
    assert (answer["status"], answer["run_result"]["return_code"]) == ("Failed", 1)
    assert answer["run_result"]["stdout"].endswith("ZeroDivisionError: division by zero\n")
    answer = _run("while True: pass", run_timeout=0.3)
    assert (answer["status"], answer["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert "MemoryError" in _run("bytearray(200 << 20)", memory_limit_MB=100)["run_result"]["stdout"]


PYTHON: dict[str, Any] = {"code": "1", "language": "python"}
FORGED = [
    *({"Origin": origin} for origin in ("http://example.org", "null")),
    *({"Host": host} for host in ("example.org:8080", "127.0.0.1.example.org", "127.0.0.1@example.org", "[", "")),
    *({"Host": host} for host in ("example.org@127.0.0.1", "localhost.example.org:99999999")),
]


def test_requests_of_web_pages_and_what_the_server_cannot_do_or_read_is_refused() -> None:
    bodies = [
        {},
        {"code": "1"},
        PYTHON | {"language": "bash"},
        PYTHON | {"code": 1},
        *(PYTHON | {"run_timeout": seconds} for seconds in ("soon", -1, math.nan, 10**400)),
        PYTHON | {"memory_limit_MB": math.inf},
    ]
    unreadable: list[tuple[bytes, dict[str, str]]] = [
        (b"[" * 100_000, {}),
        (b"{}", {"Content-Type": "application/json; charset=unknown"}),
        (b"no gzip at all", {"Content-Encoding": "gzip"}),
    ]

    async def ask() -> list[int]:
        async with _client() as client:
            asked = [await client.post("/run_code", json=body) for body in bodies]
            asked += [await client.post("/run_code", json=PYTHON, headers=headers) for headers in FORGED]
            # Last, as the connection of the last one is closed.
            asked += [await client.post("/run_code", data=data, headers=headers) for data, headers in unreadable]
            return [response.status for response in asked]

    assert asyncio.run(ask()) == [422] * len(bodies) + [403] * len(FORGED) + [422] * len(unreadable)


def test_programs_with_lower_limits_are_counted_too() -> None:
    def programs() -> int:
        running = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
        return sum("bwrap" in each.name() or "setpriv" in each.name() for each in running)

    async def ask() -> int:
        most = 0
        async with _client() as client:
            body = {"code": "import time; time.sleep(0.3)", "language": "python", "run_timeout": 4}
            asking = [asyncio.create_task(client.post("/run_code", json=body)) for _ in range(12)]
            while not all(each.done() for each in asking):
                most = max(most, programs())
                await asyncio.sleep(0.02)
            assert [each.result().status for each in asking] == [200] * 12
        return most

    assert (
        asyncio.run(ask()) <= 2 + 2 + len(EXCESSES) + 1
    )  # those of the pool wait, and the first one proves its limits


def test_a_program_ends_when_its_client_leaves() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--sandboxes", "1", "--seconds", "600"]
    command = [
        sys.executable,
        "-u",
        "-m",
        "dagrpo_sandbox.server",
        *options,
    ]  # -u: else its first line waits in a buffer
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()  # it listens

    async def run(http: ClientSession, code: str, seconds: float) -> Any:
        body = {"code": code, "language": "python"}
        async with http.post(
            f"http://127.0.0.1:{port}/run_code", json=body, timeout=ClientTimeout(seconds)
        ) as response:
            return await response.json()

    async def ask() -> None:
        async with ClientSession() as http:
            with pytest.raises(TimeoutError):
                await run(http, "while True: pass", 0.5)
            assert (await run(http, "print(1)", 60))["status"] == "Success"

    try:
        asyncio.run(ask())
    finally:
        server.terminate()
        server.communicate()


def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.1)

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"code": '
        await asyncio.sleep(100)
        yield b'"1", "language": "python"}'

    async def ask() -> int:
        async with _client() as client:
            return int((await client.post("/run_code", data=slow())).status)

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == 408


def test_a_server_without_sandboxes_is_refused() -> None:
    command = [sys.executable, "-m", "dagrpo_sandbox.server", "--sandboxes", "0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert refused.returncode == 2
    assert "--sandboxes is 0: no program could run" in refused.stderr
