"""A client of Sandbox Fusion (github.com/bytedance/SandboxFusion); needs aiohttp.

Time and memory are bounded. Of its POST /run_code it uses code, language, run_timeout, compile_timeout and memory_limit_MB, answered with
status (Success, Failed, SandboxError), message and run_result (status, execution_time, return_code, stdout, stderr). No files, no
notebooks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagrpo_sandbox.records import Limits, Result, SandboxUnavailable, Status

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

WAITING_SECONDS = 20.0  # for the server's own queue, beyond what the program may take
MOST_BYTES = 8 << 20  # of an answer
QUOTED = 200  # bytes of an answer that a sentence quotes


class FusionClient:
    """Client of one server."""

    def __init__(self, url: str, session: ClientSession, limits: Limits) -> None:
        self._url = f"{url.rstrip('/')}/run_code"
        self._session = session
        self._limits = limits

    async def run(self, program: str, *, seconds: float | None = None) -> Result:
        """Return the result of a program. Raises SandboxUnavailable naming the server and its fault.

        seconds: what the program may take in place of its limits' own.
        """
        limits = self._limits
        seconds = seconds or limits.seconds
        body = {
            "code": program,
            "language": "python",
            "run_timeout": seconds,
            "compile_timeout": seconds,
            "memory_limit_MB": limits.memory_mb,
        }
        return self._result(await self._posted(body, seconds + WAITING_SECONDS))

    async def _posted(self, body: Mapping[str, Any], seconds: float) -> bytes:
        from aiohttp import ClientError, ClientTimeout

        try:
            async with self._session.post(self._url, json=body, timeout=ClientTimeout(total=seconds)) as response:
                return await self._bounded(response)
        except TimeoutError:
            raise SandboxUnavailable(f"{self._url} did not answer within {seconds:g} s.") from None
        except (ClientError, OSError) as error:
            raise SandboxUnavailable(f"{self._url} cannot be asked: {error}") from error

    async def _bounded(self, response: ClientResponse) -> bytes:
        answer = bytearray()
        async for chunk in response.content.iter_chunked(1 << 16):
            answer += chunk
            if len(answer) > MOST_BYTES:
                response.close()
                raise SandboxUnavailable(f"{self._url} answered with more than {MOST_BYTES} bytes.")
        if response.status != 200:
            raise SandboxUnavailable(f"{self._url} answered {response.status}: {_beginning(answer)}")
        return bytes(answer)

    def _result(self, answer: bytes) -> Result:
        try:
            body = json.loads(answer)
            if body["status"] == "SandboxError":
                raise SandboxUnavailable(f"{self._url} failed: {str(body.get('message'))[:200]}")
            run = body["run_result"]
            output = "".join([run.get("stdout") or "", run.get("stderr") or ""])
            output.encode()  # no half of a surrogate pair
            return Result(stdout=output, status=_status(run), seconds=float(run.get("execution_time") or 0.0))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            raise SandboxUnavailable(
                f"{self._url} did not answer in Sandbox Fusion's protocol: {_beginning(answer)}"
            ) from None


def _beginning(answer: bytes | bytearray) -> str:
    return answer[:QUOTED].decode(errors="replace")


def _status(run: Mapping[str, Any]) -> Status:
    """Return the status. Raises KeyError for one that the protocol does not have."""
    statuses: dict[str, Status] = {"Finished": "ok", "TimeLimitExceeded": "timed_out", "Error": "error"}
    status = statuses[run["status"]]
    return "error" if status == "ok" and run["return_code"] != 0 else status
