"""Steps that an active stage has written beside its log."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dagrpo.pipeline.curve import SUFFIX


class Step(NamedTuple):
    """The metrics reported at one moment."""

    step: int
    time: int  # milliseconds since 1970
    values: Mapping[str, float]


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
