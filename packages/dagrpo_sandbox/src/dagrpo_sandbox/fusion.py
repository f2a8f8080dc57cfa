"""A client of Sandbox Fusion (github.com/bytedance/SandboxFusion), with bounded time.

Of its POST /run_code: code, language, run_timeout, compile_timeout and memory_limit_MB, answered with status (Success, Failed,
SandboxError), message and run_result (status, execution_time, return_code, stdout, stderr). No files, no notebooks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagrpo.tools import InfrastructureFailure
from dagrpo.tools.connections.over_http import beginning, posted
from dagrpo_sandbox import Limits, Result, Status

if TYPE_CHECKING:
    from aiohttp import ClientSession

WAITING_SECONDS = 20.0  # for the server's own queue, beyond what the program may take


class FusionClient:
    """Client of one server."""

    def __init__(self, url: str, session: ClientSession, limits: Limits) -> None:
        self._url = f"{url.rstrip('/')}/run_code"
        self._session = session
        self._limits = limits

    async def run(self, program: str) -> Result:
        """Return the result of a program. Raises InfrastructureFailure naming the server and its fault."""
        limits = self._limits
        body = {
            "code": program,
            "language": "python",
            "run_timeout": limits.seconds,
            "compile_timeout": limits.seconds,
            "memory_limit_MB": limits.memory_mb,
        }
        seconds = limits.seconds + WAITING_SECONDS
        return self._result(await posted(self._session, self._url, body, seconds=seconds))

    def _result(self, answer: bytes) -> Result:
        try:
            body = json.loads(answer)
            if body["status"] == "SandboxError":
                raise InfrastructureFailure(f"{self._url} failed: {str(body.get('message'))[:200]}")
            run = body["run_result"]
            output = (run.get("stdout") or "") + (run.get("stderr") or "")
            return Result(stdout=output, status=_status(run), seconds=float(run.get("execution_time") or 0.0))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InfrastructureFailure(
                f"{self._url} did not answer in Sandbox Fusion's protocol: {beginning(answer)}"
            ) from None


def _status(run: Mapping[str, Any]) -> Status:
    """Return the status. Raises KeyError for one that the protocol does not have."""
    statuses: dict[str, Status] = {"Finished": "ok", "TimeLimitExceeded": "timed_out"}
    status = statuses[run["status"]]
    return "error" if status == "ok" and run["return_code"] != 0 else status
