"""Recorded answers of judges, by the digest of what was asked."""

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.utils.checksummed_json import with_checksum, without_checksum
from dagrpo.utils.console import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A judge's answer, with its cost."""

    text: str
    prompt_tokens: int
    completion_tokens: int


class RecordedAnswers:
    """File of answers, one line of JSON each, with a digest: a damaged line is skipped, and its question asked again.

    Several processes may append to it: each line is written at once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, Answer] = {}
        if not path.exists():
            return
        lines = path.read_bytes().splitlines()
        for line in lines:
            try:
                record = without_checksum(json.loads(line))
            except ValueError:
                continue
            asked = record.pop("asked")
            self._known[asked] = Answer(**record)
        if damaged := len(lines) - len(self._known):
            say(f"{path}: {damaged} of {len(lines)} lines are damaged or there twice; what is missing is asked again.")

    def get(self, asked: str) -> Answer | None:
        """Return the answer to what has this digest; None if it is not recorded."""
        return self._known.get(asked)

    def add(self, asked: str, answer: Answer) -> None:
        """Record an answer before it is used. Raises UserError if the file cannot be written."""
        line = json.dumps(with_checksum({"asked": asked, **asdict(answer)})).encode() + b"\n"
        with self._lock:
            self._known[asked] = answer
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("ab", buffering=0) as file:
                    file.write(line if _ends_whole(self._path) else b"\n" + line)
            except OSError as error:
                raise UserError(
                    f"{self._path} cannot be written ({error.strerror}): free disk space, or set "
                    "reward.components.judge.answers to another file, then resume the run"
                ) from error


def _ends_whole(path: Path) -> bool:
    """Return False if the last line was cut off by a kill."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def digest_of(body: Mapping[str, Any]) -> str:
    """Return the digest of a request, without its address: of escaped JSON, as a text may hold half of a surrogate pair."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
