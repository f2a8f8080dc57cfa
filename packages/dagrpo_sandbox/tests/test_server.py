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


def _asked(**body: Any) -> tuple[int, dict[str, Any]]:
    async def ask() -> tuple[int, dict[str, Any]]:
        async with _client() as client:
            response = await client.post("/run_code", json=body)
            return response.status, await response.json()

    return asyncio.run(ask())


def _run(code: str, **body: Any) -> dict[str, Any]:
    status, answer = _asked(code=code, language="python", **body)
    assert status == 200
    return answer


def test_a_program_that_ends_well_is_a_success() -> None:
    answer = _run("print(6 * 7)")
    assert answer["run_result"].pop("execution_time") > 0
    run_result = {"status": "Finished", "return_code": 0, "stdout": "42\n", "stderr": ""}
    assert answer == {"status": "Success", "message": "", "compile_result": None, "run_result": run_result, "files": {}}


def test_a_program_that_raises_has_failed() -> None:
    answer = _run("1 / 0")
    assert (answer["status"], answer["run_result"]["return_code"]) == ("Failed", 1)
    assert answer["run_result"]["stdout"].endswith("ZeroDivisionError: division by zero\n")


def test_a_request_may_lower_the_limits() -> None:
    answer = _run("while True: pass", run_timeout=0.3)
    assert (answer["status"], answer["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert "MemoryError" in _run("bytearray(200 << 20)", memory_limit_MB=100)["run_result"]["stdout"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": "1"},
        {"code": "1", "language": "bash"},
        {"code": 1, "language": "python"},
        {"code": "1", "language": "python", "run_timeout": "soon"},
        {"code": "1", "language": "python", "run_timeout": -1},
        {"code": "1", "language": "python", "run_timeout": math.nan},
        {"code": "1", "language": "python", "run_timeout": 10**400},
        {"code": "1", "language": "python", "memory_limit_MB": math.inf},
    ],
)
def test_what_the_server_cannot_do_is_refused(body: dict[str, Any]) -> None:
    assert _asked(**body)[0] == 422


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"[" * 100_000, {}),
        (b"{}", {"Content-Type": "application/json; charset=unknown"}),
        (b"no gzip at all", {"Content-Encoding": "gzip"}),
    ],
    ids=["brackets", "charset", "gzip"],
)
def test_bodies_that_cannot_be_read_are_refused(body: bytes, headers: dict[str, str]) -> None:
    async def ask() -> int:
        async with _client() as client:
            return int((await client.post("/run_code", data=body, headers=headers)).status)

    assert asyncio.run(ask()) == 422


def test_programs_with_lower_limits_are_counted_too() -> None:
    def programs() -> int:
        running = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
        return sum("bwrap" in each.name() or "setpriv" in each.name() for each in running)

    async def ask() -> int:
        most = 0
        async with _client() as client:
            body = {"code": "import time; time.sleep(0.3)", "language": "python", "run_timeout": 1}
            asking = [asyncio.create_task(client.post("/run_code", json=body)) for _ in range(12)]
            while not all(each.done() for each in asking):
                most = max(most, programs())
                await asyncio.sleep(0.02)
            assert [each.result().status for each in asking] == [200] * 12
        return most

    assert (
        asyncio.run(ask()) <= 2 + 2 + len(EXCESSES) + 1
    )  # those of the pool wait, and the first one proves its limits


@pytest.mark.parametrize(
    "headers",
    [
        *({"Origin": origin} for origin in ("http://example.org", "null")),
        *({"Host": host} for host in ("example.org:8080", "127.0.0.1.example.org", "127.0.0.1@example.org", "[", "")),
        *({"Host": host} for host in ("example.org@127.0.0.1", "localhost.example.org:99999999")),
    ],
)
def test_requests_of_web_pages_are_refused(headers: dict[str, str]) -> None:
    async def ask() -> int:
        async with _client() as client:
            response = await client.post("/run_code", json={"code": "1", "language": "python"}, headers=headers)
            return int(response.status)

    assert asyncio.run(ask()) == 403


def test_a_program_ends_when_its_client_leaves() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-u",  # else its first line waits in a buffer
        "-m",
        "dagrpo_sandbox.server",
        "--port",
        str(port),
        "--sandboxes",
        "1",
        "--seconds",
        "600",
    ]
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
        await asyncio.sleep(5)
        yield b'"1", "language": "python"}'

    async def ask() -> int:
        async with _client() as client:
            return int((await client.post("/run_code", data=slow())).status)

    assert asyncio.run(asyncio.wait_for(ask(), 4)) == 408


def test_a_server_without_sandboxes_is_refused() -> None:
    command = [sys.executable, "-m", "dagrpo_sandbox.server", "--sandboxes", "0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert refused.returncode == 2
    assert "--sandboxes is 0: no program could run" in refused.stderr
