"""Metrics of an active stage's steps: JSONL beside its log."""

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TextIO

SUFFIX = ".curve.jsonl"
logger = logging.getLogger(__name__)


def now_ms() -> int:
    """Return the milliseconds since 1970, MLflow's unit of time."""
    return time.time_ns() // 1_000_000


class Step(NamedTuple):
    """The metrics reported at one moment."""

    step: int
    time: int  # milliseconds since 1970
    values: Mapping[str, float]


class Curve:
    """A file to which the metrics of each finished step are appended. A full disk costs the curve, not the stage."""

    def __init__(self, log: Path) -> None:
        self._path = log.with_suffix(SUFFIX)
        self._file: TextIO | None = None
        self._failed = False

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Append the metrics of a step; the first call replaces the curve of an earlier execution."""
        if self._failed:
            return
        line = json.dumps({"step": step, "time": now_ms(), "values": dict(values)})
        try:
            if self._file is None:
                self._file = self._path.open("w")
            self._file.write(f"{line}\n")
            self._file.flush()
        except OSError as error:
            self._failed = True
            logger.warning("the curves of this run end at step %d: %s cannot be written (%s)", step, self._path, error)


def read_curve(log: Path, *, since: int = 0, offset: int = 0) -> tuple[list[Step], int]:
    """Return the steps from byte `offset` on that are not older than `since`, and the byte to read on from.

    since: milliseconds since 1970. An incomplete last line, and a missing file, yield no steps.
    """
    try:
        with log.with_suffix(SUFFIX).open("rb") as file:
            offset = file.seek(offset if offset <= os.fstat(file.fileno()).st_size else 0)  # it was replaced
            text, complete, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return [], offset
    steps = [Step(**json.loads(line)) for line in text.splitlines()]
    return [step for step in steps if step.time >= since], offset + len(text) + len(complete)


def last_change(log: Path) -> int:
    """Return when a stage has reported its last step, in milliseconds since 1970; 0 without a curve."""
    path = log.with_suffix(SUFFIX)
    return path.stat().st_mtime_ns // 1_000_000 if path.exists() else 0
