"""Recorded results of a tool that would not give them again, such as a live search: written down, and replayed after a kill.

One line of JSON per result. A result belongs to an attempt, a function, its arguments, and to the number of such calls that the
attempt made before: so calls that run at the same time, or are made again after a failure, find their own. Not here: state
that the tool keeps elsewhere; it is not replayed.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from dagrpo.errors import UserError
from dagrpo.rollout.tools import CallContext, OpenTool, ToolFailure


class RecordedTool:
    """A tool whose results are kept in a file. A result is in the file before anybody hears of it."""

    def __init__(self, tool: OpenTool, path: Path) -> None:
        self._tool = tool
        self._path = path
        self._places: dict[str, int] = {}  # digest of a call -> where its line begins
        self._taken: defaultdict[str, set[str]] = defaultdict(set)  # attempt -> digests of its calls until now

    def __enter__(self) -> Self:
        """UserError: a line of the file is no record of a result, and was not merely cut off at the end."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = self._path.open("a+b")
        self._file.truncate(_whole_lines(self._file))
        for start, line in _lines(self._file):
            self._places[self._read(line)["call"]] = start
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """The recorded result of this call, else the tool's. ToolFailure is recorded too, InfrastructureFailure is not."""
        call = self._take(function, arguments, context.trajectory)
        if call in self._places:
            return _told(self._at(self._places[call]))
        try:
            record = {"call": call, "result": await self._tool.call(function, arguments, context)}
        except ToolFailure as failure:
            record = {"call": call, "failure": str(failure)}
        except BaseException:
            self._taken[context.trajectory].discard(call)
            raise
        self._places[call] = self._file.seek(0, 2)
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        return _told(record)

    async def forget(self, trajectory: str) -> None:
        """The attempt is over; another of that name would be told the same."""
        self._taken.pop(trajectory, None)
        await self._tool.forget(trajectory)

    def _take(self, function: str, arguments: Mapping[str, Any], trajectory: str) -> str:
        """The digest of a call, and of how many of its kind the attempt has made before. Nothing is awaited on the way."""
        taken, number = self._taken[trajectory], 0
        while (call := _digest(trajectory, function, dict(arguments), number)) in taken:
            number += 1
        taken.add(call)
        return call

    def _at(self, start: int) -> Mapping[str, Any]:
        self._file.seek(start)
        return self._read(self._file.readline())

    def _read(self, line: bytes) -> Mapping[str, Any]:
        try:
            record: Mapping[str, Any] = json.loads(line)
            assert isinstance(record["call"], str)
            return record
        except (ValueError, KeyError, TypeError, AssertionError):
            raise UserError(f"{self._path} holds a line that is no recorded result: delete the file.") from None


def _digest(*call: Any) -> str:
    """Escaped JSON, as a policy may write half of a surrogate pair, which is no UTF-8."""
    return hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()


def _told(record: Mapping[str, Any]) -> str:
    if "failure" in record:
        raise ToolFailure(record["failure"])
    return str(record["result"])


def _whole_lines(file: IO[bytes]) -> int:
    """The end of the last whole line: what follows was cut off by a kill."""
    end = 0
    for start, line in _lines(file):
        end = start + len(line) if line.endswith(b"\n") else end
    return end


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    file.seek(0)
    start = 0
    for line in file:
        yield start, line
        start += len(line)
