"""Changes since a stage ran: outputs, parameters, inputs and code."""

import difflib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import flat
from dagrpo.config.places import place_of
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief, one_line
from dagrpo.pipeline.accepted import is_accepted
from dagrpo.pipeline.changes.executions import ExecutionRecord, Today
from dagrpo.pipeline.declaration import RAW
from dagrpo.pipeline.identity import LIBRARY, code_digests, digest_of_code
from dagrpo.pipeline.job_files import recorded_code
from dagrpo.pipeline.raw_inputs import changed_raw, is_own
from dagrpo.utils.files import digest_of, sha256_of
from dagrpo.utils.manifest import MANIFEST, fault_of_size, fault_since_read, listed_files

MOST_VERSIONS = 200  # of a file, that are looked at
GIT_SECONDS = 20


def changed_lines(file: str, digest: str) -> list[str]:
    """Return the lines that were taken out of a file and put in, such as "12: - old"; empty where git knows no such text."""
    place = place_of(file)
    then = _text_of(file, place, digest)
    if then is None or not place.is_file():
        return []
    old, new, lines = then.splitlines(), place.read_text(encoding="utf-8", errors="replace").splitlines(), list[str]()
    for kind, start, stop, new_start, new_stop in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            lines += (f"{number + 1}: - {old[number]}" for number in range(start, stop))
            lines += (f"{number + 1}: + {new[number]}" for number in range(new_start, new_stop))
    return lines


def _text_of(file: str, place: Path, digest: str) -> str | None:
    """Return the file as it was with that digest, in any commit that touched it."""
    commits = _git(place.parent, "log", "--format=%H", f"--max-count={MOST_VERSIONS}", "--", place.name)
    for commit in commits.decode().split():
        content = _git(place.parent, "show", f"{commit}:./{place.name}")
        if content and digest_of_code(file, content) == digest:
            return content.decode(errors="replace")
    return None


def _git(folder: Path, *arguments: str) -> bytes:
    """Return git's output; nothing without git or a repository."""
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *arguments), capture_output=True, timeout=GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return b""
    return done.stdout


DIGITS = 12
LONGEST_PATH = 300


class Kind(StrEnum):
    """The kind of a change."""

    OUTPUT = "output"
    PARAMETER = "parameter"
    INPUT = "input"
    CODE = "code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that is not as it was when the stage ran."""

    kind: Kind
    name: str  # a path, or a dotted key
    before: str | None  # a value, or a digest; None: there was none, or it is on no record
    now: str | None  # None: it is missing

    def __str__(self) -> str:
        name = one_line(self.name, LONGEST_PATH)
        match self.kind:
            case Kind.PARAMETER:
                return f"{name} was {self.before or 'not there'} and is {self.now or 'not there any more'}"
            case Kind.OUTPUT:
                return f"{name} is missing" if self.now is None else f"{name} was changed after it was made"
            case Kind.CODE | Kind.INPUT:
                if self.now is None:
                    return f"{name} is missing"
                if name.startswith(LIBRARY) and self.before is not None:
                    return f"{name} was {self.before} and is {self.now}"
                return f"{name} is new" if self.before is None else f"{name} has changed"


class Changes:
    """Finder of changes: reads each file once, however many stages name it."""

    def __init__(self, today: Today) -> None:
        self._today = today
        self._digests: dict[str, str | None] = {}
        self._code: dict[str, str] = {}

    def of(self, execution: ExecutionRecord) -> list[Change]:
        """Return every change since the execution, those of outputs first."""
        parts = (self._outputs, self._parameters, self._inputs, self._code_files)
        return [change for part in parts for change in part(execution)]

    def digest_now(self, path: str) -> str | None:
        """Return the sha256 of a file; None if it does not exist."""
        if path not in self._digests:
            file = Path(path)
            self._digests[path] = sha256_of(file) if file.is_file() else None
        return self._digests[path]

    def _outputs(self, execution: ExecutionRecord) -> Iterator[Change]:
        yield from self._files(Kind.OUTPUT, execution.outputs)
        for path in execution.outputs:
            if Path(path).name == MANIFEST and self.digest_now(path) == execution.outputs[path]:
                yield from _folder(Path(path), execution.provenance)

    def _inputs(self, execution: ExecutionRecord) -> Iterator[Change]:
        own = {path: digest for path, digest in execution.inputs.items() if is_own(path, execution.experiment)}
        yield from self._files(Kind.INPUT, own)
        record = {name: getattr(execution, name) for name in ("inputs", "experiment", "outputs", "params")}
        job = self._today.job_of(execution)
        raw = () if job is None else job.inputs.get(RAW, ())
        for name, (before, now) in changed_raw(record, raw).items():
            yield Change(kind=Kind.INPUT, name=name, before=before and before[:DIGITS], now=now[:DIGITS])

    def _files(self, kind: Kind, digests: Mapping[str, str]) -> Iterator[Change]:
        for path, before in digests.items():
            now = self.digest_now(path)
            if now != before:
                yield Change(kind=kind, name=path, before=before[:DIGITS], now=now and now[:DIGITS])

    def _parameters(self, execution: ExecutionRecord) -> Iterator[Change]:
        own = self._today.own_params(execution)
        if own is None:
            return
        before, now = flat(execution.params), flat(own)
        for key in [*now, *(key for key in before if key not in now)]:
            if key not in before or key not in now or before[key] != now[key]:
                yield Change(kind=Kind.PARAMETER, name=key, before=_value(before, key), now=_value(now, key))

    def _code_files(self, execution: ExecutionRecord) -> Iterator[Change]:
        files = self._today.code_of(execution)
        if files is None:
            return
        self._code |= code_digests([file for file in files if file not in self._code])
        now = {file: self._code[file] for file in files if file in self._code}
        if is_accepted(execution.stage, execution.code, digest_of(now)):
            return
        before = recorded_code(execution.code)
        if before is None:
            then, today = execution.code[:DIGITS], digest_of(now)[:DIGITS]
            yield Change(kind=Kind.CODE, name="the code of the stage", before=then, now=today)
            return
        for file in sorted({*before, *now}):
            if before.get(file) != now.get(file):
                yield Change(kind=Kind.CODE, name=file, before=before.get(file), now=now.get(file))


def _folder(manifest: Path, provenance: Path) -> Iterator[Change]:
    """Yield the files of a folder that are missing or changed. Files older than provenance.json are compared by size alone.

    By ctime, which a copy with an older time has too.
    """
    try:
        listed = listed_files(manifest)
    except UserError:  # a manifest of something that lists no files
        return
    written = provenance.stat().st_ctime_ns
    for name, entry in listed.items():
        file = manifest.parent / name
        if not file.is_file():
            yield Change(kind=Kind.OUTPUT, name=str(file), before=entry.sha256[:DIGITS], now=None)
            continue
        fault = fault_since_read if file.stat().st_ctime_ns > written else fault_of_size
        if fault(file, entry) is not None:
            yield Change(kind=Kind.OUTPUT, name=str(file), before=entry.sha256[:DIGITS], now=sha256_of(file)[:DIGITS])


def _value(values: Mapping[str, Any], key: str) -> str | None:
    return brief(values[key]) if key in values else None
