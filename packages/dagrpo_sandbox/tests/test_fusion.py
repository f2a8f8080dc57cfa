"""The side that asks in Sandbox Fusion's protocol: whatever a server does is a result, or a failure that names the server."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import ClientSession, web
from tests.loopback import Handler, answering, hang, listening

from dagrpo_sandbox import Limits, Result, SandboxUnavailable, fusion
from dagrpo_sandbox.fusion import FusionClient

LIMITS = Limits(seconds=3.0, memory_mb=100)


def _result(handler: Handler) -> Result:
    async def run() -> Result:
        async with listening(answering("/run_code", handler)) as url, ClientSession() as session:
            return await FusionClient(url, session, LIMITS).run("print(1)")

    return asyncio.run(run())


def _says(body: Any, status: int = 200) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body if isinstance(body, str) else json.dumps(body), status=status)

    return answer


def _finished(**changes: Any) -> dict[str, Any]:
    run = {"status": "Finished", "execution_time": 0.25, "return_code": 0, "stdout": "1\n", "stderr": ""}
    return {"status": "Success", "message": "", "compile_result": None, "run_result": run | changes, "files": {}}


def _fails(handler: Handler) -> str:
    with pytest.raises(SandboxUnavailable, match=r"^http://127\.0\.0\.1:\d+/run_code ") as failure:
        _result(handler)
    return str(failure.value)


def test_the_request_has_the_fields_of_the_protocol() -> None:
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response(_finished())

    assert _result(answer) == Result(stdout="1\n", status="ok", seconds=0.25)
    body = {
        "code": "print(1)",
        "language": "python",
        "run_timeout": 3.0,
        "compile_timeout": 3.0,
        "memory_limit_MB": 100,
    }
    assert asked == [body]


def test_a_program_that_fails_is_an_error_with_what_it_wrote() -> None:
    result = _result(_says(_finished(return_code=1, stderr="NameError") | {"status": "Failed"}))
    assert (result.status, result.stdout) == ("error", "1\nNameError")


def test_a_program_that_takes_too_long_has_timed_out() -> None:
    run = {"status": "TimeLimitExceeded", "execution_time": 3.1, "return_code": None, "stdout": None, "stderr": None}
    assert _result(_says({"status": "Failed", "run_result": run})) == Result(stdout="", status="timed_out", seconds=3.1)


def test_a_fault_of_the_sandbox_is_no_fault_of_the_program() -> None:
    assert "failed: no disk" in _fails(_says({"status": "SandboxError", "message": "no disk", "run_result": None}))


def test_a_server_that_answers_500_is_named_with_what_it_said() -> None:
    assert "answered 500: out of memory" in _fails(_says("out of memory" * 1000, status=500))


@pytest.mark.parametrize(
    "body",
    ["", "no json", "[]", "null", "{}", "[" * 100_000, {"status": "Success"}, _finished(status="Exploded")],
)
def test_an_answer_in_another_form_is_quoted(body: Any) -> None:
    assert "did not answer in Sandbox Fusion's protocol" in _fails(_says(body))


def test_an_answer_of_100_mb_is_not_read_to_its_end() -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * (1 << 20))
            sent += 1
        return response

    assert "more than 8388608 bytes" in _fails(flood)
    assert sent < 100


def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "WAITING_SECONDS", -2.8)
    assert "did not answer within 0.2 s" in _fails(hang)


@pytest.mark.parametrize(
    "changes",
    [
        {"execution_time": 10**400},
        {"execution_time": "x"},
        {"execution_time": {"a": 1}},
        {"stdout": ["["]},
        {"stdout": {"a": 1}},
        {"stdout": 7},
        {"stdout": "\ud800"},
        {"status": []},
        {"status": None},
    ],
    ids=lambda changes: str(changes)[:30],
)
def test_a_field_of_another_type_is_another_protocol(changes: dict[str, Any]) -> None:
    assert "did not answer in Sandbox Fusion's protocol" in _fails(_says(_finished(**changes)))
