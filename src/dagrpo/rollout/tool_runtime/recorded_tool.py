"""Record and replay results of unrepeatable tools, such as live search.

A killed run resumes with the recorded results. One line of JSON per result. A result belongs to an attempt, a function, its arguments,
and to the number of such calls that the attempt made before: so calls that run at the same time, or are made again after a failure,
find their own. A tool that keeps something between calls has lost it by a kill: before its first new call the replayed calls are made
again.

Each line has its own digest. A damaged line is skipped and reported, and its call made again.
"""

import asyncio
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from dagrpo.core.errors import UserError
from dagrpo.tools import CallContext, InfrastructureFailure, OpenTool, StatelessTool, ToolFailure, ToolTimeout
from dagrpo.utils.checksummed_json import with_checksum, without_checksum
from dagrpo.utils.console import say

logger = logging.getLogger(__name__)


class TimedTool:
    """Tool wrapper that gives up a call after `seconds` seconds."""

    def __init__(self, tool: OpenTool, seconds: float) -> None:
        self._tool = tool
        self._seconds = seconds

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the tool's result. Raises ToolTimeout if it is late, InfrastructureFailure if the tool's own deadline has passed."""
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                return await self._tool.call(function, arguments, context)
        except TimeoutError as error:
            if deadline.expired():
                raise ToolTimeout(f"{function} gave no result within {self._seconds:g} seconds.") from None
            raise InfrastructureFailure(f"{function} failed: {error or 'a deadline of its own has passed'}.") from error

    async def forget(self, trajectory: str) -> None:
        """Tell the tool that the attempt is over."""
        await self._tool.forget(trajectory)


class MissingTool(StatelessTool):
    """Tool in the place of one that must not run, of which there are recorded results."""

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Raise InfrastructureFailure, which excludes the attempt."""
        raise InfrastructureFailure(f"This call of {function} has no recorded result.")


@dataclass(slots=True)
class _Attempt:
    """State of an attempt until it is forgotten."""

    digests: set[str] = field(default_factory=set)  # digests of its calls
    missed: list[tuple[str, Mapping[str, Any], CallContext]] = field(default_factory=list)  # replayed, not made
    catching_up: asyncio.Lock = field(default_factory=asyncio.Lock)


class RecordedTool:
    """Tool whose results are written to a file before they are returned."""

    def __init__(self, tool: OpenTool, path: Path, *, stateless: bool) -> None:
        """Wrap a tool. stateless: it keeps nothing between calls, so replayed calls need not be made again."""
        self._tool = tool
        self._path = path
        self._stateless = stateless
        self._places: dict[str, int] = {}  # digest of a call -> where its line begins
        self._attempts: defaultdict[str, _Attempt] = defaultdict(_Attempt)

    def __enter__(self) -> Self:
        """Open the file and report damaged lines. A line that was cut off at the end is removed."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = self._path.open("a+b")
        self._file.truncate(_whole_lines(self._file))
        lines = [(start, _record(line)) for start, line in _lines(self._file)]
        self._places = {record["call"]: start for start, record in lines if record is not None}
        self._tell(sum(record is None for _, record in lines), len(lines))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the recorded result of this call, else the tool's. ToolFailure is recorded too, InfrastructureFailure is not.

        Raises UserError if it cannot be recorded.
        """
        attempt = self._attempts[context.trajectory]
        call = take_digest(attempt.digests, function, arguments, context.trajectory)
        record = self._recorded(call)
        if record is not None:
            if not self._stateless:
                attempt.missed.append((function, arguments, context))
            return _result_text(record)
        try:
            await self._catch_up(attempt)
            record = {"call": call, "result": await self._tool.call(function, arguments, context)}
        except ToolFailure as failure:
            record = {"call": call, "late" if isinstance(failure, ToolTimeout) else "failure": str(failure)}
        except BaseException:
            attempt.digests.discard(call)
            raise
        self._write(record)
        return _result_text(record)

    async def _catch_up(self, attempt: _Attempt) -> None:
        """Repeat the replayed calls, so that the tool has its state again. Their results are known."""
        async with attempt.catching_up:
            while attempt.missed:
                with suppress(ToolFailure):
                    await self._tool.call(*attempt.missed[0])
                del attempt.missed[0]

    def _write(self, record: Mapping[str, str]) -> None:
        start = self._file.seek(0, 2)
        try:
            self._file.write(json.dumps(with_checksum(record)).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            with suppress(OSError):
                self._file.close()
            raise UserError(
                f"{self._path} cannot be written ({error.strerror}): free disk space, then resume the run."
            ) from error
        self._places[record["call"]] = start

    async def forget(self, trajectory: str) -> None:
        """Forget the attempt, which is over; another of that name would get the same results."""
        self._attempts.pop(trajectory, None)
        await self._tool.forget(trajectory)

    def _recorded(self, call: str) -> Mapping[str, Any] | None:
        """Return the record of a call; None if it is missing, or was damaged since the file was opened."""
        if call not in self._places:
            return None
        self._file.seek(self._places[call])
        record = _record(self._file.readline())
        self._tell(int(record is None), len(self._places))
        return record

    def _tell(self, damaged: int, lines: int) -> None:
        if damaged:
            are_damaged = "is damaged: its call is" if damaged == 1 else "are damaged: their calls are"
            sentence = f"{self._path}: {damaged} of {lines} recorded results {are_damaged} made again."
            logger.warning(sentence)
            say(sentence)


def _record(line: bytes) -> Mapping[str, Any] | None:
    try:
        return without_checksum(json.loads(line))
    except ValueError:
        return None


def take_digest(digests: set[str], function: str, arguments: Mapping[str, Any], trajectory: str) -> str:
    """Return the digest of a call and of the number of earlier calls like it in the attempt. Nothing is awaited on the way."""
    number = 0
    while (call := _digest(trajectory, function, dict(arguments), number)) in digests:
        number += 1
    digests.add(call)
    return call


def _digest(*call: Any) -> str:
    """Return the digest of escaped JSON, as a policy may write half of a surrogate pair, which is no UTF-8."""
    return hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()


def _result_text(record: Mapping[str, Any]) -> str:
    if "late" in record:
        raise ToolTimeout(record["late"])
    if "failure" in record:
        raise ToolFailure(record["failure"])
    result: str = record["result"]
    return result


def _whole_lines(file: IO[bytes]) -> int:
    """Return the end of the last whole line: a kill cut off what follows."""
    end = 0
    for start, line in _lines(file):
        end = start + len(line) if line.endswith(b"\n") else end
    return end


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    file.seek(0)
    start = 0
    while line := file.readline():
        yield start, line
        start += len(line)
