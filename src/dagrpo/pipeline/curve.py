"""Metrics of an active stage's steps: JSONL beside its log."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

SUFFIX = ".curve.jsonl"
logger = logging.getLogger(__name__)


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


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
